//! Quantized weights as the panels of products of f32 rows: they are widened part by part.

use std::ops::Range;

use pulp::Simd;

use super::matrix::QuantMatrix;
use super::{PANEL, VECTOR, avx2};
use crate::buffer::{Buffer, Line};
use crate::gemm::{DEPTH, PanelPart, PanelWeights, VECTORS};
use crate::isa::Isa;

impl PanelWeights for QuantMatrix {
    type Stored = f32;

    fn shape(&self) -> (Isa, usize, usize, usize) {
        (self.isa, self.inputs, self.outputs, PANEL)
    }

    #[inline(always)]
    fn part<'a, S: Simd>(
        &'a self,
        _: S,
        panel: usize,
        inputs: Range<usize>,
        _: bool,
        scratch: &'a mut Buffer<f32>,
    ) -> PanelPart<'a, S, f32> {
        assert!(QuantMatrix::takes_floats(self.isa));
        let (groups, length) =
            (inputs.start / self.format.group..inputs.end / self.format.group, inputs.len() * PANEL);
        scratch.grow(length);
        let to = &mut scratch[..length];
        // SAFETY: floats are taken only where these instructions are.
        unsafe { avx2::widen(&self.panel(panel), groups, to) };
        PanelPart::Wide(S::as_simd_f32s(to).0.as_chunks::<VECTORS>().0)
    }

    fn next_lines(&self, panel: usize, input: usize) -> &[Line] {
        let (group, bytes) = (self.format.group, self.format.group_bytes());
        let lines = self.codes.lines_from((panel * self.groups + input / group) * bytes);
        &lines[..lines.len().min(DEPTH / group * bytes / VECTOR)]
    }
}
