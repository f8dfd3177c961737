//! A block of sequences in f32, from ids to hidden states, on one thread.

use rayon::prelude::*;
use sconce_core::batch::Batch;
use sconce_kernels::attention::{Added, Head, Reach, Scratch};
use sconce_kernels::isa::Isa;
use sconce_kernels::product::{AddTo, Epilogue, Matrix, Space, Store};
use sconce_kernels::rope::Angles;
use sconce_kernels::rows::{Activation, Norm, gate};

use super::scratch::Held;
use super::weights::{Layer, Linear, Packing, Table, Weights};
use crate::description::{Description, NormPlacement};
use crate::parts::disentangled::PlaceScores;
use crate::queries::Heads;

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

    fn part(&self, width: usize) -> usize {
        width
    }
}

/// One model in f32.
pub(super) struct InF32<'a> {
    pub(super) d: &'a Description,
    pub(super) weights: &'a Weights<Matrix>,
    pub(super) isa: Isa,
    pub(super) activation: Activation,
}

/// Room for a block, kept between blocks.
#[derive(Default)]
pub(super) struct Room {
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    wide: Vec<f32>,
    gated: Vec<f32>,
    space: Space,
    scratch: Scratch,
    scores: PlaceScores,
}

impl Held for Room {
    fn bytes(&self) -> usize {
        let Room { x, normed, qkv, mixed, wide, gated, space, scratch, scores } = self;
        let numbers: usize = [x, normed, qkv, mixed, wide, gated].map(Vec::capacity).iter().sum();
        numbers * size_of::<f32>() + space.bytes() + scratch.bytes() + scores.bytes()
    }
}

impl InF32<'_> {
    /// The last hidden states of `batch`, `[tokens, hidden]`.
    pub(super) fn hidden(&self, batch: &Batch, room: &mut Room) -> Vec<f32> {
        let InF32 { d, weights, isa, .. } = *self;
        let (tokens, hidden) = (batch.tokens(), d.hidden);
        room.x = vec![0.0; tokens * hidden];
        room.normed.resize(tokens * hidden, 0.0);
        room.qkv.resize(tokens * d.qkv_width(), 0.0);
        room.mixed.resize(tokens * d.query_width(), 0.0);
        room.wide.resize(tokens * d.up_width(), 0.0);
        room.gated.resize(if d.gated { tokens * d.intermediate } else { 0 }, 0.0);
        weights.embed(d, batch, |token, row| room.x[token * hidden..][..hidden].copy_from_slice(row));
        if let Some(norm) = &weights.embedding_norm {
            norm.apply(isa, &mut room.x, hidden);
        }
        let longest = batch.sequences.iter().map(|s| s.length).max().unwrap_or(0);
        let angles = weights.turns.each_ref().map(|turns| turns.as_ref().map(|turns| turns.up_to(longest)));
        for layer in &weights.layers {
            self.attention(layer, batch, angles[usize::from(layer.is_local)].as_deref(), room);
            self.feed_forward(layer, tokens, room);
        }
        if let Some(norm) = &weights.final_norm {
            norm.apply(isa, &mut room.x, hidden);
        }
        std::mem::take(&mut room.x)
    }

    fn attention(&self, layer: &Layer<Matrix>, batch: &Batch, angles: Option<&Angles>, room: &mut Room) {
        let InF32 { d, weights, isa, .. } = *self;
        let Room { x, normed, qkv, mixed, space, scratch, scores, .. } = room;
        let (tokens, hidden, stride, width) = (batch.tokens(), d.hidden, d.qkv_width(), d.query_width());
        let heads = Heads::of(d);
        let from = before(layer.attention_norms[0].as_ref(), isa, x, normed, hidden);
        let bias = &layer.qkv.bias;
        let to = &mut Store { bias, activation: Activation::Identity, to: qkv, stride };
        self.product(&layer.qkv.matrix, from, hidden, tokens, space, to);
        let span = d.local.as_ref().filter(|_| layer.is_local).unwrap_or(&d.global);
        for s in &batch.sequences {
            let rows = &mut qkv[s.start * stride..][..s.length * stride];
            if angles.is_some() || layer.head_norms.is_some() {
                for (position, row) in rows.chunks_exact_mut(stride).enumerate() {
                    heads.prepare(isa, row, position, layer.head_norms.as_ref(), angles);
                }
            }
            for head in 0..d.heads {
                let at = heads.columns(head, stride);
                let scale = d.scale as f32;
                let added = match (&weights.biases, &layer.places) {
                    (Some(biases), _) => Added::Distances(biases.head(head)),
                    (None, Some(places)) => {
                        let parts = [at.parts[0], at.parts[1]];
                        Added::Disentangled(places.scores(scores, head, rows, stride, parts, scale))
                    }
                    (None, None) => Added::None,
                };
                let reach = Reach { seen: s.seen(), ..span.reach() };
                let task = Head { rows, length: s.length, at, bias: None, scale, reach, added };
                task.attend(isa, scratch, &mut mixed[s.start * width + head * d.head..], width);
            }
        }
        let after = layer.attention_norms[1].as_ref();
        self.add(&layer.output, after, mixed, width, tokens, x, normed, space);
    }

    fn feed_forward(&self, layer: &Layer<Matrix>, tokens: usize, room: &mut Room) {
        let InF32 { d, isa, activation, .. } = *self;
        let Room { x, normed, wide, gated, space, .. } = room;
        let from = before(layer.output_norms[0].as_ref(), isa, x, normed, d.hidden);
        let none = vec![0.0; layer.up.bias.len()];
        let (bias, first) =
            if d.gated { (&none, Activation::Identity) } else { (&layer.up.bias, activation) };
        let to = &mut Store { bias, activation: first, to: wide, stride: d.up_width() };
        self.product(&layer.up.matrix, from, d.hidden, tokens, space, to);
        if d.gated {
            gate(isa, wide, &layer.up.bias, activation, gated);
        }
        let from = if d.gated { gated } else { wide };
        let after = layer.output_norms[1].as_ref();
        self.add(&layer.down, after, from, d.intermediate, tokens, x, normed, space);
    }

    /// Adds a product to `x`, with the norm that follows it.
    #[expect(clippy::too_many_arguments, reason = "buffers that are lent one by one")]
    fn add(
        &self,
        linear: &Linear<Matrix>,
        norm: Option<&Norm>,
        from: &[f32],
        stride: usize,
        tokens: usize,
        x: &mut [f32],
        room: &mut [f32],
        space: &mut Space,
    ) {
        let InF32 { d, isa, .. } = *self;
        let (bias, hidden) = (&linear.bias, d.hidden);
        if let (Some(norm), NormPlacement::Both) = (norm, d.placement) {
            let to = &mut Store { bias, activation: Activation::Identity, to: room, stride: hidden };
            self.product(&linear.matrix, from, stride, tokens, space, to);
            norm.apply(isa, room, hidden);
            x.iter_mut().zip(&*room).for_each(|(x, y)| *x += y);
            return;
        }
        let to = &mut AddTo { bias, to: x, stride: hidden };
        self.product(&linear.matrix, from, stride, tokens, space, to);
        if let Some(norm) = norm {
            norm.apply(isa, x, hidden);
        }
    }

    /// A product, its columns split between the threads that are at hand: all of them for a lone block, whose time
    /// goes into fetching the weights.
    fn product(
        &self,
        matrix: &Matrix,
        from: &[f32],
        stride: usize,
        rows: usize,
        space: &mut Space,
        to: &mut impl Epilogue,
    ) {
        let (panels, threads) = (matrix.panels(), rayon::current_num_threads());
        if threads == 1 {
            return matrix.multiply(from, stride, rows, space, to);
        }
        let share = |n: usize| panels * n / threads..panels * (n + 1) / threads;
        let parts = (0..threads).into_par_iter().map(|n| matrix.part(from, stride, rows, share(n)));
        parts.collect::<Vec<_>>().iter_mut().for_each(|part| part.give(self.isa, to));
    }
}

/// What a part of a layer reads: `x` itself, or its norm in `room`.
fn before<'a>(norm: Option<&Norm>, isa: Isa, x: &'a [f32], room: &'a mut [f32], hidden: usize) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    room.copy_from_slice(x);
    norm.apply(isa, room, hidden);
    room
}
