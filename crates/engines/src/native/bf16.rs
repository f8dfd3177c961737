//! A block of sequences in bf16 on matrix tiles, from ids to hidden states, on one thread. Residuals, norms, softmax
//! and sums stay f32.

use sconce_core::batch::Batch;
use sconce_kernels::amx::{
    Amx, Finish, HeadBf16, MatrixBf16, STEP, ScratchBf16, Tiles, narrow, norm_rows, widen,
};
use sconce_kernels::attention::{Columns, Head, Scratch};
use sconce_kernels::buffer::Buffer;
use sconce_kernels::isa::Isa;
use sconce_kernels::rows::Activation;

use super::weights::{Packing, Table, Weights};
use crate::description::Description;

/// Matrices for tiles.
pub(super) struct PackBf16(pub(super) Amx);

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
}

/// Room for a block, kept between blocks.
#[derive(Default)]
pub(super) struct Room {
    x: Buffer<f32>,
    rounded: Buffer<u16>,
    qkv: Buffer<u16>,
    mixed: Buffer<u16>,
    wide: Buffer<u16>,
    attention: ScratchBf16,
    odd: OddHeads,
}

/// What heads need whose width does not fill tiles: their attention is f32.
#[derive(Default)]
struct OddHeads {
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    scratch: Scratch,
}

/// One model on tiles.
pub(super) struct OnTiles<'a> {
    pub(super) d: &'a Description,
    pub(super) weights: &'a Weights<MatrixBf16>,
    pub(super) activation: Activation,
    pub(super) amx: Amx,
}

impl OnTiles<'_> {
    /// The last hidden states of `batch`, `[tokens, hidden]`.
    pub(super) fn hidden(&self, batch: &Batch, room: &mut Room) -> Vec<f32> {
        self.amx.with_tiles(|tiles| self.block(tiles, batch, room))
    }

    fn block(&self, tiles: &Tiles, batch: &Batch, room: &mut Room) -> Vec<f32> {
        let OnTiles { d, weights, activation, amx } = *self;
        let tokens = batch.tokens();
        let stride = d.hidden.next_multiple_of(STEP);
        let (three, inner) = ((3 * d.hidden).next_multiple_of(STEP), d.intermediate.next_multiple_of(STEP));
        // Attention reads up to 31 rows behind a sequence.
        let rows = tokens.next_multiple_of(STEP) + STEP;
        room.x.grow(rows * stride);
        room.rounded.grow(rows * stride);
        room.qkv.grow(rows * three);
        room.mixed.grow(rows * stride);
        room.wide.grow(rows * inner);
        let Room { x, rounded, qkv, mixed, wide, attention, odd } = room;
        for s in &batch.sequences {
            let place = s.start..s.start + s.length;
            let to = &mut x[s.start * stride..][..s.length * stride];
            weights.embed(d, &batch.ids[place.clone()], &batch.types[place], to, stride);
        }
        norm_rows(amx, &weights.embedding_norm, &mut x[..tokens * stride], rounded, stride);
        for layer in &weights.layers {
            let to = &mut Finish::Store {
                bias: &layer.qkv.bias,
                activation: Activation::Identity,
                to: qkv,
                stride: three,
            };
            layer.qkv.matrix.multiply(tiles, rounded, stride, tokens, to);
            for s in &batch.sequences {
                for head in 0..d.heads {
                    let at =
                        Columns { stride: three, hidden: d.hidden, head: d.head(), first: head * d.head() };
                    let rows = &qkv[s.start * three..];
                    let output = &mut mixed[s.start * stride + at.first..];
                    let distances = weights.distances(head);
                    if d.head().is_multiple_of(STEP) {
                        let task = HeadBf16 { rows, length: s.length, at, distances };
                        task.attend(tiles, attention, output, stride);
                    } else {
                        odd.attend(
                            &Head { rows: &[], length: s.length, at, bias: None, distances },
                            rows,
                            output,
                            stride,
                        );
                    }
                }
            }
            let to = &mut Finish::Add { bias: &layer.output.bias, to: x, stride };
            layer.output.matrix.multiply(tiles, mixed, stride, tokens, to);
            norm_rows(amx, &layer.attention_norm, &mut x[..tokens * stride], rounded, stride);
            let to = &mut Finish::Store { bias: &layer.up.bias, activation, to: wide, stride: inner };
            layer.up.matrix.multiply(tiles, rounded, stride, tokens, to);
            let to = &mut Finish::Add { bias: &layer.down.bias, to: x, stride };
            layer.down.matrix.multiply(tiles, wide, inner, tokens, to);
            norm_rows(amx, &layer.output_norm, &mut x[..tokens * stride], rounded, stride);
        }
        x.chunks_exact(stride).take(tokens).flat_map(|row| &row[..d.hidden]).copied().collect()
    }
}

impl OddHeads {
    fn attend(&mut self, head: &Head<'_>, rows: &[u16], output: &mut [u16], stride: usize) {
        let (length, width) = (head.length, head.at.head);
        self.qkv.resize(length * head.at.stride, 0.0);
        widen(&rows[..length * head.at.stride], &mut self.qkv);
        self.mixed.resize(length * width, 0.0);
        let task = Head { rows: &self.qkv, ..*head };
        task.attend(Isa::Avx512, &mut self.scratch, &mut self.mixed, width);
        for (row, output) in self.mixed.chunks_exact(width).zip(output.chunks_mut(stride)) {
            for (to, x) in output.iter_mut().zip(row) {
                *to = narrow(*x);
            }
        }
    }
}
