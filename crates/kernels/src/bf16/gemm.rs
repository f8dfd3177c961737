//! bf16 GEMM with prepacked weights, in blocks of 32 rows by 32 columns. While tiles multiply one block, vectors run
//! the epilogue of the previous one, and the next weights are prefetched.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::ops::Range;

use super::convert::{narrow, widen};
use super::epilogue::EpilogueBf16;
use super::input::InputBf16;
use super::panels::STEP;
use super::tiles::Bf16;
use super::vectors::{Pair, add, gelu, load, round, store};
use crate::buffer::Buffer;
use crate::rows::Activation;
use crate::team::Team;

/// Values in a tile of weights.
pub(crate) const TILE: usize = 512;
/// Columns in a tile.
const COLUMNS: usize = 16;
/// Pairs of inputs in a tile.
const PAIRS: usize = STEP / 2;
/// Values in a cache line.
const LINE: usize = 32;

/// A weight matrix `[outputs, inputs]` as bf16 tiles: for 32 columns, two tiles per 32 inputs, inputs in pairs.
pub struct MatrixBf16 {
    inputs: usize,
    outputs: usize,
    tiles: Buffer<u16>,
}

/// A block of accumulators before the epilogue.
#[repr(C, align(64))]
struct Block([[f32; STEP]; STEP]);

impl MatrixBf16 {
    /// Packs row-major `weights`, `[outputs, inputs]`; both are padded with zeros to multiples of 32.
    pub fn pack(unit: Bf16, weights: &[f32], outputs: usize, inputs: usize) -> MatrixBf16 {
        MatrixBf16::pack_rows((unit, &Team::single()), outputs, inputs, |output, to| {
            to.copy_from_slice(&weights[output * inputs..][..inputs]);
        })
    }

    /// The same with the threads of a team. `read` writes the weights of an output.
    pub fn pack_rows(
        (_, team): (Bf16, &Team),
        outputs: usize,
        inputs: usize,
        read: impl Fn(usize, &mut [f32]) + Sync,
    ) -> MatrixBf16 {
        let size = inputs.div_ceil(STEP) * 2 * TILE;
        let mut tiles = Buffer::zeros(outputs.div_ceil(STEP) * size);
        team.each(tiles.chunks_exact_mut(size.max(1)).enumerate(), |(number, panel)| {
            let mut row = vec![0.0; inputs];
            for output in number * STEP..((number + 1) * STEP).min(outputs) {
                read(output, &mut row);
                for (pair, weights) in row.chunks(2).enumerate() {
                    let to = &mut panel[place_of_pair(output % STEP, pair)..];
                    to.iter_mut().zip(weights).for_each(|(to, weight)| *to = narrow(*weight));
                }
            }
        });
        MatrixBf16 { inputs, outputs, tiles }
    }

    /// The weights of an output.
    pub fn row(&self, output: usize, to: &mut [f32]) {
        let size = self.inputs() * STEP;
        let panel = &self.tiles[output / STEP * size..][..size];
        for (pair, to) in to.chunks_mut(2).enumerate() {
            widen(&panel[place_of_pair(output % STEP, pair)..], to);
        }
    }

    /// Input features, padded.
    pub fn inputs(&self) -> usize {
        self.inputs.next_multiple_of(STEP)
    }

    /// Output features, padded.
    pub fn outputs(&self) -> usize {
        self.outputs.next_multiple_of(STEP)
    }

    /// Computes `input · weightsᵀ` for some panels of the output.
    pub fn multiply(&self, input: InputBf16<'_>, panels: Range<usize>, mut epilogue: EpilogueBf16<'_>) {
        assert!(input.holds(self.inputs()));
        assert!(panels.end * STEP <= self.outputs() && epilogue.holds(input.rows, panels.end));
        // SAFETY: `Tiles` exists only where these instructions do; the sizes were checked above.
        unsafe { self.multiply_blocks(input, panels, &mut epilogue) }
    }

    /// Number of panels of the output.
    pub fn panels(&self) -> usize {
        self.outputs() / STEP
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn multiply_blocks(
        &self,
        input: InputBf16<'_>,
        panels: Range<usize>,
        epilogue: &mut EpilogueBf16<'_>,
    ) {
        let size = self.inputs() / STEP * 2 * TILE;
        let mut pipeline = Pipeline::new(input);
        for panel in panels {
            let weights = &self.tiles[panel * size..][..size];
            // SAFETY: as `multiply` made sure.
            unsafe { pipeline.multiply(weights, panel, true, epilogue) };
        }
        pipeline.finish(epilogue);
    }
}

/// The place of two inputs of an output in its panel.
fn place_of_pair(output: usize, pair: usize) -> usize {
    let tile = pair / PAIRS * 2 + output / COLUMNS;
    tile * TILE + pair % PAIRS * STEP + output % COLUMNS * 2
}

/// The blocks of a GEMM: while tiles multiply one, vectors run the epilogue of the one before.
pub(super) struct Pipeline<'a> {
    input: InputBf16<'a>,
    blocks: [Block; 2],
    /// The block that is being computed.
    turn: usize,
    /// First row and panel of the block before.
    before: Option<(usize, usize)>,
}

impl<'a> Pipeline<'a> {
    /// The blocks of an input.
    pub(super) fn new(input: InputBf16<'a>) -> Pipeline<'a> {
        let block = || Block([[0.0; STEP]; STEP]);
        Pipeline { input, blocks: [block(), block()], turn: 0, before: None }
    }

    /// Multiplies the input with the weights of a panel, two tiles per 32 inputs. `is_followed` tells whether the
    /// weights of the next panel follow in memory.
    ///
    /// # Safety
    /// The input has its rows up to a multiple of 32, and as many values in a row as there are weights.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    pub(super) unsafe fn multiply(
        &mut self,
        weights: &[u16],
        panel: usize,
        is_followed: bool,
        epilogue: &mut EpilogueBf16<'_>,
    ) {
        let InputBf16 { tiles, a, rows } = self.input;
        let steps = weights.len() / (2 * TILE);
        let share = STEP.div_ceil(steps);
        let ahead = if is_followed { (2 * TILE / LINE).div_ceil(rows.div_ceil(STEP)) } else { 0 };
        let weights = weights.as_ptr();
        for row in (0..rows).step_by(STEP) {
            let [first, second] = &mut self.blocks;
            let (now, done) = if self.turn == 0 { (first, second) } else { (second, first) };
            let all = rows - row > STEP / 2;
            let soon = row / STEP * ahead;
            tiles.zero();
            for step in 0..steps {
                // SAFETY: rows up to a multiple of 32 and inputs up to a multiple of 32 lie in `a`, and two tiles a
                // step in the weights; prefetching reads nothing.
                unsafe {
                    let top = a.rows_from(step, row).as_ptr();
                    let left = weights.add(step * 2 * TILE);
                    if all {
                        tiles.multiply_2x2(top, top.add(STEP / 2 * STEP), 64, left, left.add(TILE));
                    } else {
                        tiles.multiply_1x2(top, 64, left, left.add(TILE));
                    }
                    let next = left.wrapping_add((steps * 2 * TILE) + soon * LINE);
                    for line in 0..ahead {
                        _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(line * LINE).cast());
                    }
                }
                if let Some((row, panel)) = self.before {
                    drain(done, step * share..(step + 1) * share, row, panel, rows, epilogue);
                }
            }
            // SAFETY: a block is 32 rows of 128 bytes.
            unsafe { tiles.store(now.0.as_mut_ptr().cast(), STEP * 4, all) };
            self.before = Some((row, panel));
            self.turn = 1 - self.turn;
        }
    }

    /// Runs the epilogue of the last block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    pub(super) fn finish(&mut self, epilogue: &mut EpilogueBf16<'_>) {
        if let Some((row, panel)) = self.before.take() {
            drain(&mut self.blocks[1 - self.turn], 0..STEP, row, panel, self.input.rows, epilogue);
        }
    }
}

/// Runs the epilogue on the rows `part` of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
#[inline]
fn drain(
    block: &mut Block,
    part: Range<usize>,
    row: usize,
    panel: usize,
    rows: usize,
    epilogue: &mut EpilogueBf16<'_>,
) {
    let end = part.end.min(STEP).min(rows - row);
    if part.start >= end {
        return;
    }
    let block = &mut block.0[part.start..end];
    let row = row + part.start;
    match epilogue {
        EpilogueBf16::Store { bias, activation, to } => {
            let bias = bias_of(bias, panel);
            let to = to.rows_from(panel, row).as_chunks_mut().0;
            for (values, to) in block.iter_mut().zip(to) {
                let sums = add(load(values), bias);
                let sums = match activation {
                    Activation::Identity => sums,
                    Activation::Gelu => sums.map(|x| gelu(x)),
                    Activation::GeluTanh | Activation::Relu | Activation::Silu | Activation::QuickGelu => {
                        store(sums, values);
                        activation.apply(values);
                        load(values)
                    }
                };
                round(sums, to);
            }
        }
        EpilogueBf16::Add { bias, to } => {
            let bias = bias_of(bias, panel);
            let to = to.rows_from(panel, row).as_chunks_mut().0;
            for (values, to) in block.iter().zip(to) {
                store(add(load(to), add(load(values), bias)), to);
            }
        }
    }
}

/// The 32 biases of a panel.
#[target_feature(enable = "avx512f")]
#[inline]
fn bias_of(bias: &[f32], panel: usize) -> Pair {
    load(&bias.as_chunks().0[panel])
}
