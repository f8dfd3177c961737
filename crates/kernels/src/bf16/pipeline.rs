//! The blocks of a bf16 GEMM, 32 rows by 32 columns: while tiles multiply one block, vectors run the epilogue of the one
//! before.

use std::ops::Range;

use super::epilogue::EpilogueBf16;
use super::input::InputBf16;
use super::panels::STEP;
use super::vectors::{Pair, add, gelu, load, round, store};
use crate::buffer::Line;
use crate::rows::{Activation, copy};

/// Values in a tile of weights.
pub(crate) const TILE: usize = 512;
/// Most steps of a part: its weights stay in the L1 cache for all rows.
const DEPTH: usize = 16;
/// Most blocks of 32 rows by 32 inputs in a chunk: half a megabyte.
const CHUNK: usize = 256;
/// Panels of a group: a chunk is read again for the next group.
const GROUP: usize = 8;

/// A block of accumulators.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Block([[f32; STEP]; STEP]);

impl Block {
    const ZEROS: Block = Block([[0.0; STEP]; STEP]);
}

/// A part of a panel: the weights of 32 outputs for some steps of 32 inputs, two tiles per step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) panel: usize,
    pub(super) steps: Range<usize>,
    /// The panel's place among those whose accumulators are kept.
    place: usize,
}

/// The order of a GEMM.
#[derive(Clone, Copy, Debug)]
struct Order {
    /// Steps of a panel.
    steps: usize,
    /// Steps of a part.
    depth: usize,
    /// Steps of a chunk, a multiple of `depth`: these inputs of all rows stay in the L2 cache for some panels.
    chunk: usize,
    /// Panels of a group.
    group: usize,
}

impl Order {
    /// The order for some blocks of 32 rows.
    fn of(blocks: usize, steps: usize) -> Order {
        if blocks < 2 {
            // A single block reads each weight once.
            return Order { steps, depth: steps.max(1), chunk: steps.max(1), group: 1 };
        }
        let depth = steps.div_ceil(steps.div_ceil(DEPTH).max(1)).max(1);
        let most = (CHUNK / blocks).max(DEPTH);
        // A few steps more are better than a short chunk.
        if steps <= most + most / 2 {
            return Order { steps, depth, chunk: steps.max(1), group: 1 };
        }
        let chunk = steps.div_ceil(steps.div_ceil(most)).next_multiple_of(depth);
        Order { steps, depth, chunk, group: GROUP }
    }

    /// The parts of some panels, one after the other. Those of a panel are in order.
    fn parts(self, panels: Range<usize>) -> impl Iterator<Item = Part> {
        let Order { steps, depth, chunk, group } = self;
        let end = panels.end;
        panels.step_by(group).flat_map(move |first| {
            (0..steps).step_by(chunk).flat_map(move |start| {
                (first..(first + group).min(end)).flat_map(move |panel| {
                    let stop = (start + chunk).min(steps);
                    (start..stop).step_by(depth).map(move |step| Part {
                        panel,
                        steps: step..(step + depth).min(stop),
                        place: panel - first,
                    })
                })
            })
        })
    }
}

/// The blocks of a GEMM.
pub(super) struct Pipeline<'a> {
    input: InputBf16<'a>,
    order: Order,
    blocks: [Block; 2],
    /// The block that is being computed.
    turn: usize,
    /// First row and panel of the block before, until its epilogue has run.
    before: Option<(usize, usize)>,
    /// Accumulators of all rows between two parts of a panel, for the panels of a group.
    sums: Vec<Block>,
}

impl<'a> Pipeline<'a> {
    /// The blocks of an input. A panel of weights has `steps` steps of 32 inputs.
    pub(super) fn new(input: InputBf16<'a>, steps: usize) -> Pipeline<'a> {
        let blocks = input.rows.div_ceil(STEP);
        let order = Order::of(blocks, steps);
        let sums = vec![Block::ZEROS; if order.depth < steps { blocks * order.group } else { 0 }];
        Pipeline { input, order, blocks: [Block::ZEROS; 2], turn: 0, before: None, sums }
    }

    /// The parts of some panels, in the order in which they are multiplied.
    pub(super) fn parts(&self, panels: Range<usize>) -> impl Iterator<Item = Part> + use<> {
        self.order.parts(panels)
    }

    /// Multiplies the input with the weights of a part, of which the output is panel `panel`. Meanwhile, the lines `next` are prefetched.
    ///
    /// # Safety
    /// The input has its rows up to a multiple of 32, and as many values in a row as a panel has inputs. The part is of this
    /// pipeline, and the weights are those of the part.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    pub(super) unsafe fn multiply(
        &mut self,
        panel: usize,
        part: &Part,
        weights: &[u16],
        next: [&[Line]; 2],
        epilogue: &mut EpilogueBf16<'_>,
    ) {
        let InputBf16 { tiles, a, rows } = self.input;
        let Part { steps, place, .. } = part;
        let blocks = rows.div_ceil(STEP);
        let share = STEP.div_ceil(steps.len());
        let mut next = next.map(|lines| lines.chunks(lines.len().div_ceil(steps.len() * blocks).max(1)));
        let weights = weights.as_ptr();
        for (block, row) in (0..rows).step_by(STEP).enumerate() {
            let [first, second] = &mut self.blocks;
            let (now, done) = if self.turn == 0 { (first, second) } else { (second, first) };
            let before = self.before.take();
            let all = rows - row > STEP / 2;
            if steps.start == 0 {
                tiles.zero();
            } else {
                let sums = &self.sums[place * blocks + block];
                // SAFETY: a block is 32 rows of 128 bytes.
                unsafe { tiles.load(sums.0.as_ptr().cast(), STEP * 4, all) };
            }
            for (number, step) in steps.clone().enumerate() {
                // SAFETY: rows up to a multiple of 32 and inputs up to a multiple of 32 lie in `a`, and two tiles a
                // step in the weights.
                unsafe {
                    let top = a.rows_from(step, row).as_ptr();
                    let left = weights.add(number * 2 * TILE);
                    if all {
                        tiles.multiply_2x2(top, top.add(STEP / 2 * STEP), 64, left, left.add(TILE));
                    } else {
                        tiles.multiply_1x2(top, 64, left, left.add(TILE));
                    }
                }
                for next in &mut next {
                    next.next().unwrap_or_default().iter().for_each(Line::fetch);
                }
                if let Some((row, panel)) = before {
                    drain(done, number * share..(number + 1) * share, row, panel, rows, epilogue);
                }
            }
            let is_last = steps.end == self.order.steps;
            let to = if is_last { now } else { &mut self.sums[place * blocks + block] };
            // SAFETY: a block is 32 rows of 128 bytes.
            unsafe { tiles.store(to.0.as_mut_ptr().cast(), STEP * 4, all) };
            if is_last {
                self.before = Some((row, panel));
                self.turn = 1 - self.turn;
            }
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
        EpilogueBf16::Rows { bias, to } => {
            let bias = bias_of(bias, panel);
            let columns = panel * STEP..to.columns().end.min((panel + 1) * STEP);
            for (number, values) in block.iter_mut().enumerate() {
                store(add(load(values), bias), values);
                copy(&values[..columns.len()], to.row(row + number, columns.clone()));
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
