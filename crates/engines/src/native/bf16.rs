//! A block of sequences in bf16 on matrix tiles, from ids to hidden states, on one thread. Residuals, norms, softmax
//! and sums stay f32.

use std::ops::Range;

use sconce_core::batch::Batch;
use sconce_kernels::bf16::{
    Bf16, Finish, HeadBf16, MatrixBf16, Panels, STEP, ScratchBf16, Tiles, narrow, norm_rows,
};
use sconce_kernels::rows::Activation;

use super::weights::{Packing, Table, Weights};
use crate::description::Description;

/// Matrices for tiles.
pub(super) struct PackBf16(pub(super) Bf16);

impl Packing<MatrixBf16> for PackBf16 {
    fn matrix(&self, weights: &[f32], outputs: usize, inputs: usize) -> MatrixBf16 {
        MatrixBf16::pack(self.0, weights, outputs, inputs)
    }

    fn table(&self, rows: Vec<f32>) -> Table {
        Table::Bf16(rows.into_iter().map(narrow).collect())
    }

    fn padded(&self, outputs: usize) -> usize {
        outputs.next_multiple_of(STEP)
    }

    fn head(&self, width: usize) -> usize {
        width.next_multiple_of(STEP)
    }
}

/// Room for a block, kept between blocks.
#[derive(Default)]
pub(super) struct Room {
    x: Panels<f32>,
    rounded: Panels<u16>,
    qkv: Panels<u16>,
    mixed: Panels<u16>,
    wide: Panels<u16>,
    attention: ScratchBf16,
}

/// One model on tiles.
pub(super) struct OnTiles<'a> {
    pub(super) d: &'a Description,
    pub(super) weights: &'a Weights<MatrixBf16>,
    pub(super) activation: Activation,
    pub(super) unit: Bf16,
}

impl OnTiles<'_> {
    /// The last hidden states of `batch`, `[tokens, hidden]`.
    pub(super) fn hidden(&self, batch: &Batch, room: &mut Room) -> Vec<f32> {
        self.unit.with_tiles(|tiles| self.block(tiles, batch, room))
    }

    fn block(&self, tiles: &Tiles, batch: &Batch, room: &mut Room) -> Vec<f32> {
        let OnTiles { d, weights, activation, unit } = *self;
        let tokens = batch.tokens();
        // Each head has whole panels of its own.
        let panels = d.head().div_ceil(STEP);
        let heads = d.heads * panels;
        let Room { x, rounded, qkv, mixed, wide, attention } = room;
        x.shape(tokens, d.hidden);
        rounded.shape(tokens, d.hidden);
        qkv.shape(tokens, 3 * heads * STEP);
        mixed.shape(tokens, heads * STEP);
        wide.shape(tokens, d.intermediate);
        weights.embed(d, batch, |token, row| x.set(token, row));
        norm_rows(unit, &weights.embedding_norm, tokens, x, rounded);
        for layer in &weights.layers {
            let plain = Activation::Identity;
            let to = Finish::Store { bias: &layer.qkv.bias, activation: plain, to: qkv.all() };
            self.product(tiles, &layer.qkv.matrix, rounded, tokens, to);
            for s in &batch.sequences {
                for head in 0..d.heads {
                    let query = head * panels;
                    let task = HeadBf16 {
                        rows: qkv,
                        start: s.start,
                        length: s.length,
                        panels,
                        query,
                        key: heads + query,
                        value: 2 * heads + query,
                        scale: 1.0 / (d.head() as f32).sqrt(),
                        distances: weights.distances(head),
                    };
                    task.attend(tiles, attention, mixed, query);
                }
            }
            let to = Finish::Add { bias: &layer.output.bias, to: x.all() };
            self.product(tiles, &layer.output.matrix, mixed, tokens, to);
            norm_rows(unit, &layer.attention_norm, tokens, x, rounded);
            let to = Finish::Store { bias: &layer.up.bias, activation, to: wide.all() };
            self.product(tiles, &layer.up.matrix, rounded, tokens, to);
            let to = Finish::Add { bias: &layer.down.bias, to: x.all() };
            self.product(tiles, &layer.down.matrix, wide, tokens, to);
            norm_rows(unit, &layer.output_norm, tokens, x, rounded);
        }
        let mut hidden = vec![0.0; tokens * d.hidden];
        for (row, to) in hidden.chunks_exact_mut(d.hidden).enumerate() {
            x.get(row, to);
        }
        hidden
    }

    /// A product, its columns split between the threads that are at hand: all of them for a lone block, whose time
    /// goes into fetching the weights.
    fn product(&self, tiles: &Tiles, m: &MatrixBf16, a: &Panels<u16>, rows: usize, finish: Finish<'_>) {
        let threads = rayon::current_num_threads().min(m.panels());
        if threads == 1 {
            m.multiply(tiles, a, rows, 0..m.panels(), finish);
        } else {
            self.split(m, a, rows, 0..m.panels(), threads, finish);
        }
    }

    fn split(
        &self,
        m: &MatrixBf16,
        a: &Panels<u16>,
        rows: usize,
        panels: Range<usize>,
        threads: usize,
        finish: Finish<'_>,
    ) {
        if threads == 1 {
            return self.unit.with_tiles(|tiles| m.multiply(tiles, a, rows, panels, finish));
        }
        let few = threads / 2;
        let middle = panels.start + panels.len() * few / threads;
        let (left, right) = finish.split(middle);
        rayon::join(
            || self.split(m, a, rows, panels.start..middle, few, left),
            || self.split(m, a, rows, middle..panels.end, threads - few, right),
        );
    }
}
