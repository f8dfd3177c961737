//! bf16 GEMM with prepacked weights.

use std::ops::Range;

use super::convert::{narrow, widen};
use super::epilogue::EpilogueBf16;
use super::input::InputBf16;
use super::panels::STEP;
use super::pipeline::{Part, Pipeline, TILE};
use super::tiles::Bf16;
use crate::buffer::{Buffer, Line};
use crate::team::Team;

/// Columns in a tile.
const COLUMNS: usize = 16;
/// Pairs of inputs in a tile.
const PAIRS: usize = STEP / 2;
/// How far ahead the weights of a single block of rows are prefetched.
const AHEAD: usize = 2 * TILE;

/// A weight matrix `[outputs, inputs]` as bf16 tiles: for 32 columns, two tiles per 32 inputs, inputs in pairs.
pub struct MatrixBf16 {
    inputs: usize,
    outputs: usize,
    tiles: Buffer<u16>,
}

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
        let steps = self.inputs() / STEP;
        let mut pipeline = Pipeline::new(input, steps);
        let place = |part: &Part| (part.panel * steps + part.steps.start) * 2 * TILE;
        let mut parts = pipeline.parts(panels).peekable();
        while let Some(part) = parts.next() {
            let weights = &self.tiles[place(&part)..][..part.steps.len() * 2 * TILE];
            let next = if input.rows <= STEP {
                self.tiles.lines_from(place(&part) + AHEAD)
            } else {
                parts.peek().map_or(&[][..], |part| self.tiles.lines_from(place(part)))
            };
            let next = &next[..next.len().min(weights.len() / Line::of::<u16>())];
            // SAFETY: as `multiply` made sure.
            unsafe { pipeline.multiply(part.panel, &part, weights, [next, &[]], epilogue) };
        }
        pipeline.finish(epilogue);
    }
}

/// The place of two inputs of an output in its panel.
fn place_of_pair(output: usize, pair: usize) -> usize {
    let tile = pair / PAIRS * 2 + output / COLUMNS;
    tile * TILE + pair % PAIRS * STEP + output % COLUMNS * 2
}
