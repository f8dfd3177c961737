//! Matrices that multiply rows of bf16 on tiles.

use std::cell::RefCell;
use std::ops::Range;

use sconce_kernels::bf16::{EpilogueBf16, InputBf16, MatrixBf16, STEP};
use sconce_kernels::buffer::Buffer;

use super::stacked::{Part, StackedMatrix};
use super::weights::WeightRows;

/// A matrix that multiplies rows of bf16.
pub(super) trait TileMatrix: WeightRows + Sync {
    /// Number of panels of 32 outputs.
    fn panels(&self) -> usize;

    /// Computes `input · weightsᵀ` for some panels of the output.
    fn multiply(&self, input: InputBf16<'_>, panels: Range<usize>, epilogue: EpilogueBf16<'_>);
}

impl TileMatrix for MatrixBf16 {
    fn panels(&self) -> usize {
        MatrixBf16::panels(self)
    }

    fn multiply(&self, input: InputBf16<'_>, panels: Range<usize>, epilogue: EpilogueBf16<'_>) {
        MatrixBf16::multiply(self, input, panels, epilogue);
    }
}

thread_local! {
    /// Weights of 32 outputs, widened.
    static WIDENED: RefCell<Buffer<u16>> = RefCell::default();
}

/// Only where [`StackedMatrix::has_tiles`] says so.
impl TileMatrix for StackedMatrix {
    fn panels(&self) -> usize {
        self.parts.iter().map(|part| part.outputs() / STEP).sum()
    }

    fn multiply(&self, input: InputBf16<'_>, panels: Range<usize>, mut epilogue: EpilogueBf16<'_>) {
        WIDENED.with_borrow_mut(|widened| {
            let mut first = 0;
            for part in &self.parts {
                let end = first + part.outputs() / STEP;
                let own = panels.start.clamp(first, end) - first..panels.end.clamp(first, end) - first;
                if let (Part::Quantized(matrix), false) = (part, own.is_empty()) {
                    matrix.multiply_bf16(input, own, first, &mut epilogue, widened);
                }
                first = end;
            }
        });
    }
}

impl StackedMatrix {
    /// Whether it can multiply rows of bf16: all of it is quantized, in whole panels.
    pub(super) fn has_tiles(&self) -> bool {
        let is_tiled = |part: &Part| match part {
            Part::Quantized(matrix) => matrix.has_bf16_panels(),
            Part::Float(_) => false,
        };
        self.parts.iter().all(is_tiled)
    }
}
