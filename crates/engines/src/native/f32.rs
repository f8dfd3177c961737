//! A block of sequences in f32, from ids to hidden states, on one thread.

use sconce_core::batch::Batch;
use sconce_kernels::attention::{Columns, Head, Scratch};
use sconce_kernels::isa::Isa;
use sconce_kernels::product::{AddTo, Matrix, Store};
use sconce_kernels::rows::Activation;

use super::weights::{Packing, Table, Weights};
use crate::description::Description;

/// Matrices for f32 kernels.
pub(super) struct PackF32(pub(super) Isa);

impl Packing<Matrix> for PackF32 {
    fn matrix(&self, weights: &[f32], outputs: usize, inputs: usize) -> Matrix {
        Matrix::pack(self.0, weights, outputs, inputs)
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        Table::F32(rows)
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs
    }

    fn head(&self, width: usize) -> usize {
        width
    }
}

/// The last hidden states of `batch`, `[tokens, hidden]`.
pub(super) fn hidden(
    d: &Description,
    weights: &Weights<Matrix>,
    isa: Isa,
    activation: Activation,
    batch: &Batch,
) -> Vec<f32> {
    let (tokens, hidden) = (batch.tokens(), d.hidden);
    let mut x = vec![0.0; tokens * hidden];
    let mut qkv = vec![0.0; tokens * 3 * hidden];
    let mut mixed = vec![0.0; tokens * hidden];
    let mut wide = vec![0.0; tokens * d.intermediate];
    let (mut packed, mut scratch) = (Vec::new(), Scratch::default());
    weights.embed(d, batch, |token, row| x[token * hidden..][..hidden].copy_from_slice(row));
    weights.embedding_norm.apply(isa, &mut x, hidden);
    for layer in &weights.layers {
        let to = &mut Store {
            bias: &layer.qkv.bias,
            activation: Activation::Identity,
            to: &mut qkv,
            stride: 3 * hidden,
        };
        layer.qkv.matrix.multiply(&x, hidden, tokens, &mut packed, to);
        for s in &batch.sequences {
            let rows = &qkv[s.start * 3 * hidden..][..s.length * 3 * hidden];
            for head in 0..d.heads {
                let at = Columns { stride: 3 * hidden, hidden, head: d.head(), first: head * d.head() };
                let distances = weights.distances(head);
                let task = Head { rows, length: s.length, at, bias: None, distances };
                task.attend(isa, &mut scratch, &mut mixed[s.start * hidden + at.first..], hidden);
            }
        }
        let to = &mut AddTo { bias: &layer.output.bias, to: &mut x, stride: hidden };
        layer.output.matrix.multiply(&mixed, hidden, tokens, &mut packed, to);
        layer.attention_norm.apply(isa, &mut x, hidden);
        let to = &mut Store { bias: &layer.up.bias, activation, to: &mut wide, stride: d.intermediate };
        layer.up.matrix.multiply(&x, hidden, tokens, &mut packed, to);
        let to = &mut AddTo { bias: &layer.down.bias, to: &mut x, stride: hidden };
        layer.down.matrix.multiply(&wide, d.intermediate, tokens, &mut packed, to);
        layer.output_norm.apply(isa, &mut x, hidden);
    }
    x
}
