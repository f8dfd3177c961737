//! GEMM of bf16 rows with quantized weights: 32 columns at a time are widened to bf16 tiles, which stay in the L2 cache
//! for all rows.

use std::ops::Range;

use super::epilogue::EpilogueBf16;
use super::input::InputBf16;
use super::panels::STEP;
use super::pipeline::{Pipeline, TILE};
use crate::buffer::Buffer;
use crate::quant::QuantMatrix;

impl QuantMatrix {
    /// Whether rows of bf16 can be multiplied: outputs come in whole panels of 32.
    pub fn has_bf16_panels(&self) -> bool {
        self.outputs().is_multiple_of(STEP) && self.inputs().is_multiple_of(STEP)
    }

    /// Computes `input · weightsᵀ` for some panels of 32 outputs. The first panel of this matrix is panel `first` of the
    /// destination. `widened` is scratch memory.
    pub fn multiply_bf16(
        &self,
        input: InputBf16<'_>,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut EpilogueBf16<'_>,
        widened: &mut Buffer<u16>,
    ) {
        assert!(self.has_bf16_panels() && panels.end * STEP <= self.outputs());
        assert!(input.holds(self.inputs()) && epilogue.holds(input.rows, first + panels.end));
        widened.grow(self.inputs() / STEP * 2 * TILE);
        // SAFETY: `Tiles` exists only where these instructions do; the sizes were checked above.
        unsafe { self.multiply_panels(input, panels, first, epilogue, widened) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi,fma")]
    unsafe fn multiply_panels(
        &self,
        input: InputBf16<'_>,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut EpilogueBf16<'_>,
        widened: &mut Buffer<u16>,
    ) {
        let mut pipeline = Pipeline::new(input, self.inputs() / STEP);
        let mut parts = pipeline.parts(panels).peekable();
        while let Some(part) = parts.next() {
            let weights = &mut widened[..part.steps.len() * 2 * TILE];
            self.widen(part.panel, part.steps.clone(), weights);
            let next =
                parts.peek().map_or([&[][..]; 2], |next| self.code_lines(next.panel, next.steps.clone()));
            // SAFETY: as `multiply_bf16` made sure.
            unsafe { pipeline.multiply(first + part.panel, &part, weights, next, epilogue) };
        }
        pipeline.finish(epilogue);
    }
}
