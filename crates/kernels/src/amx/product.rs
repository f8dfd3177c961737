//! Products of bf16 rows with prepacked weights, 32 rows by 32 columns at a time. While tiles multiply one block,
//! vectors finish the one before it.

use super::STEP;
use super::bf16::{gelu, narrow_all};
use super::finish::Finish;
use super::number::narrow;
use super::tiles::{Amx, Tiles};
use crate::buffer::Buffer;
use crate::rows::Activation;

/// Numbers in a tile of weights.
const TILE: usize = 512;
/// Columns in a tile.
const COLUMNS: usize = 16;

/// Weights `[outputs, inputs]` as bf16 tiles: columns in sixteens, inputs in pairs.
pub struct MatrixBf16 {
    inputs: usize,
    outputs: usize,
    tiles: Buffer<u16>,
}

/// A block of sums on its way out.
#[repr(C, align(64))]
struct Block([[f32; STEP]; STEP]);

impl MatrixBf16 {
    /// Packs `weights`, `[outputs, inputs]` row after row; both are padded with zeros to multiples of 32.
    pub fn pack(_: Amx, weights: &[f32], outputs: usize, inputs: usize) -> MatrixBf16 {
        let steps = inputs.div_ceil(STEP);
        let mut tiles = Buffer::zeros(outputs.next_multiple_of(STEP) / COLUMNS * steps * TILE);
        for (output, row) in weights.chunks_exact(inputs).enumerate().take(outputs) {
            for (input, weight) in row.iter().enumerate() {
                let tile = output / COLUMNS * steps + input / STEP;
                let place = input % STEP / 2 * STEP + output % COLUMNS * 2 + input % 2;
                tiles[tile * TILE + place] = narrow(*weight);
            }
        }
        MatrixBf16 { inputs, outputs, tiles }
    }

    /// Numbers in, padded.
    pub fn inputs(&self) -> usize {
        self.inputs.next_multiple_of(STEP)
    }

    /// Numbers out, padded.
    pub fn outputs(&self) -> usize {
        self.outputs.next_multiple_of(STEP)
    }

    /// `a · weightsᵀ` for `rows` rows of `a`, which are `stride` apart; there is room for a multiple of 32 rows.
    pub fn multiply(&self, tiles: &Tiles, a: &[u16], stride: usize, rows: usize, finish: &mut Finish<'_>) {
        assert!(stride >= self.inputs() && a.len() >= rows.next_multiple_of(STEP) * stride);
        // SAFETY: `Tiles` exists only where these instructions do; the sizes were checked above.
        unsafe { self.multiply_blocks(tiles, a, stride, rows, finish) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn multiply_blocks(
        &self,
        tiles: &Tiles,
        a: &[u16],
        stride: usize,
        rows: usize,
        finish: &mut Finish<'_>,
    ) {
        let steps = self.inputs() / STEP;
        let mut blocks = [Block([[0.0; STEP]; STEP]), Block([[0.0; STEP]; STEP])];
        let mut before: Option<(usize, usize)> = None;
        let mut turn = 0;
        for column in (0..self.outputs()).step_by(STEP) {
            let panels = self.tiles[column / COLUMNS * steps * TILE..].as_ptr();
            for row in (0..rows).step_by(STEP) {
                let [first, second] = &mut blocks;
                let (now, done) = if turn == 0 { (first, second) } else { (second, first) };
                let all = rows - row > STEP / 2;
                let share = STEP.div_ceil(steps);
                tiles.zero();
                for step in 0..steps {
                    // SAFETY: rows up to a multiple of 32 and inputs up to a multiple of 32 lie in `a`, and two
                    // panels of `steps` tiles in the weights, as `multiply` and `pack` made sure.
                    unsafe {
                        let top = a.as_ptr().add(row * stride + step * STEP);
                        let left = panels.add(step * TILE);
                        let right = left.add(steps * TILE);
                        if all {
                            tiles.four(top, top.add(STEP / 2 * stride), stride * 2, left, right);
                        } else {
                            tiles.two(top, stride * 2, left, right);
                        }
                    }
                    if let Some((row, column)) = before {
                        drain(done, step * share..(step + 1) * share, row, column, rows, finish);
                    }
                }
                // SAFETY: a block is 32 rows of 128 bytes.
                unsafe { tiles.store(now.0.as_mut_ptr().cast(), STEP * 4, all) };
                before = Some((row, column));
                turn = 1 - turn;
            }
        }
        if let Some((row, column)) = before {
            drain(&mut blocks[1 - turn], 0..STEP, row, column, rows, finish);
        }
    }
}

/// Finishes the rows `part` of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
#[inline]
fn drain(
    block: &mut Block,
    part: std::ops::Range<usize>,
    row: usize,
    column: usize,
    rows: usize,
    finish: &mut Finish<'_>,
) {
    for place in part.start..part.end.min(STEP).min(rows - row) {
        finish_row(finish, row + place, column, &mut block.0[place]);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
#[inline]
fn finish_row(finish: &mut Finish<'_>, row: usize, column: usize, values: &mut [f32; STEP]) {
    match finish {
        Finish::Store { bias, activation, to, stride } => {
            let bias = piece(bias, column);
            for (value, bias) in values.iter_mut().zip(bias) {
                *value += bias;
            }
            match activation {
                Activation::Gelu => values.iter_mut().for_each(|x| *x = gelu(*x)),
                Activation::Identity | Activation::GeluTanh | Activation::Relu => activation.apply(values),
            }
            narrow_all(values, &mut to[row * *stride + column..][..STEP]);
        }
        Finish::Add { bias, to, stride } => {
            let bias = piece(bias, column);
            let to = &mut to[row * *stride + column..][..STEP];
            // Summed apart: the compiler can't know that the slices do not overlap, and would go one by one.
            let mut sums = piece(to, 0);
            for ((sum, value), bias) in sums.iter_mut().zip(values.iter()).zip(bias) {
                *sum += value + bias;
            }
            to.copy_from_slice(&sums);
        }
    }
}

/// A copy of the `STEP` numbers from `column` on.
#[inline(always)]
fn piece(from: &[f32], column: usize) -> [f32; STEP] {
    let mut piece = [0.0; STEP];
    piece.copy_from_slice(&from[column..column + STEP]);
    piece
}
