//! GEMM of bf16 rows with quantized weights: 32 columns at a time are widened to bf16 tiles, which stay in the L2 cache
//! for all rows.

use std::ops::Range;

use super::epilogue::EpilogueBf16;
use super::gemm::{Pipeline, TILE};
use super::panels::{Panels, STEP};
use super::tiles::Tiles;
use crate::buffer::Buffer;
use crate::quant::QuantMatrix;

impl QuantMatrix {
    /// Whether rows of bf16 can be multiplied: outputs come in whole panels of 32.
    pub fn has_bf16_panels(&self) -> bool {
        self.outputs().is_multiple_of(STEP) && self.inputs().is_multiple_of(STEP)
    }

    /// Computes `a · weightsᵀ` for the first `rows` rows of `a` and some panels of 32 outputs. The first panel of this
    /// matrix is panel `first` of the destination. `widened` is scratch memory.
    #[expect(clippy::too_many_arguments, reason = "rows, columns and destination of a product")]
    pub fn multiply_bf16(
        &self,
        tiles: &Tiles,
        a: &Panels<u16>,
        rows: usize,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut EpilogueBf16<'_>,
        widened: &mut Buffer<u16>,
    ) {
        assert!(self.has_bf16_panels() && panels.end * STEP <= self.outputs());
        assert!(a.panels() * STEP >= self.inputs() && a.height() >= rows.next_multiple_of(STEP));
        assert!(epilogue.holds(rows, first + panels.end));
        widened.grow(self.inputs() / STEP * 2 * TILE);
        // SAFETY: `Tiles` exists only where these instructions do; the sizes were checked above.
        unsafe { self.multiply_panels(tiles, a, rows, panels, first, epilogue, widened) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    #[expect(clippy::too_many_arguments, reason = "rows, columns and destination of a product")]
    unsafe fn multiply_panels(
        &self,
        tiles: &Tiles,
        a: &Panels<u16>,
        rows: usize,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut EpilogueBf16<'_>,
        widened: &mut Buffer<u16>,
    ) {
        let widened = &mut widened[..self.inputs() / STEP * 2 * TILE];
        let mut pipeline = Pipeline::new(rows);
        for panel in panels {
            self.widen(panel, widened);
            // SAFETY: as `multiply_bf16` made sure.
            unsafe { pipeline.multiply(tiles, a, widened, first + panel, false, epilogue) };
        }
        pipeline.finish(epilogue);
    }
}
