//! GEMM of bf16 rows with quantized weights: 32 columns at a time are widened to bf16 tiles, which stay in the L2 cache
//! for all rows.

use std::ops::Range;

use super::epilogue::EpilogueBf16;
use super::gemm::{Pipeline, TILE};
use super::input::InputBf16;
use super::panels::STEP;
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

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn multiply_panels(
        &self,
        input: InputBf16<'_>,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut EpilogueBf16<'_>,
        widened: &mut Buffer<u16>,
    ) {
        let widened = &mut widened[..self.inputs() / STEP * 2 * TILE];
        let mut pipeline = Pipeline::new(input);
        for panel in panels {
            self.widen(panel, widened);
            // SAFETY: as `multiply_bf16` made sure.
            unsafe { pipeline.multiply(widened, first + panel, false, epilogue) };
        }
        pipeline.finish(epilogue);
    }
}
