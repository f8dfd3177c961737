//! A matrix of quantized weights and its products.

use std::ops::Range;

use super::byte_rows::ByteRows;
#[cfg(target_arch = "x86_64")]
use super::format::CodeWidth;
use super::format::QuantFormat;
use super::panel::Panel;
use super::rows::QuantizedRows;
#[cfg(target_arch = "x86_64")]
use super::rows::TILE_ROWS;
#[cfg(target_arch = "x86_64")]
use super::tiles::{self, ByteTiles};
use super::{PANEL, portable};
use crate::buffer::Buffer;
use crate::gemm::ColumnBlock;
use crate::isa::Isa;

/// Bytes of activations that stay in the L2 cache.
#[cfg(target_arch = "x86_64")]
const L2_BYTES: usize = 1 << 20;

/// A matrix `[outputs, inputs]` of quantized weights, packed in panels of 16 outputs. Four consecutive inputs of an output
/// are adjacent: a word of a vector.
#[derive(Clone)]
pub struct QuantMatrix {
    pub(super) isa: Isa,
    pub(super) format: QuantFormat,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Per panel and group, in runs of 16 inputs.
    pub(super) codes: Buffer<u8>,
    /// Per panel, group and column, with super-blocks.
    pub(super) group_scales: Buffer<i8>,
    pub(super) group_minimums: Buffer<u8>,
    /// Per panel, super-block and column: f16.
    pub(super) scales: Buffer<u16>,
    pub(super) minimums: Buffer<u16>,
}

impl QuantMatrix {
    /// Input features.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Output features.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of panels, the unit for splitting the work.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        let bytes = [self.codes.bytes(), self.group_scales.bytes(), self.group_minimums.bytes()];
        bytes.iter().sum::<usize>() + self.scales.bytes() + self.minimums.bytes()
    }

    pub(super) fn panel(&self, number: usize) -> Panel<'_> {
        let QuantMatrix { format, inputs, .. } = *self;
        let (groups, blocks) = (inputs / format.group, inputs / format.block());
        let codes = groups * format.group_bytes();
        let (integers, factors) = (groups * PANEL, blocks * PANEL);
        Panel {
            format,
            codes: &self.codes[number * codes..][..codes],
            group_scales: if format.is_super() {
                &self.group_scales[number * integers..][..integers]
            } else {
                &[]
            },
            group_minimums: if format.is_super() && format.has_minimums {
                &self.group_minimums[number * integers..][..integers]
            } else {
                &[]
            },
            scales: &self.scales[number * factors..][..factors],
            minimums: if format.has_minimums { &self.minimums[number * factors..][..factors] } else { &[] },
        }
    }

    /// Computes the columns of some panels: `rows · weightsᵀ`.
    pub fn multiply_columns(&self, rows: &QuantizedRows, panels: Range<usize>) -> ColumnBlock {
        assert!(rows.inputs() == self.inputs && panels.end <= self.panels());
        self.columns(rows.rows(), &panels, |put| self.multiply_blocks(rows, panels.clone(), put))
    }

    /// The same with rows of bytes.
    pub fn multiply_byte_columns(&self, rows: &ByteRows, panels: Range<usize>) -> ColumnBlock {
        assert!(rows.inputs() == self.inputs && panels.end <= self.panels());
        self.columns(rows.rows(), &panels, |put| {
            for number in panels.clone() {
                let panel = self.panel(number);
                let mut put = |row: usize, values: &[f32; PANEL]| put(row, number, values);
                #[cfg(target_arch = "x86_64")]
                if super::avx512_bytes::multiply(self.isa, &panel, rows, &mut put)
                    || super::avx2_bytes::multiply(self.isa, &panel, rows, &mut put)
                {
                    continue;
                }
                #[cfg(target_arch = "aarch64")]
                if self.isa == Isa::Other && super::neon_bytes::multiply(&panel, rows, &mut put) {
                    continue;
                }
                self.isa.run(portable::MultiplyBytes { panel: &panel, rows, put: &mut put });
            }
        })
    }

    /// The columns of some panels. `multiply` passes each row, panel and its products on.
    fn columns(
        &self,
        rows: usize,
        panels: &Range<usize>,
        multiply: impl FnOnce(&mut dyn FnMut(usize, usize, &[f32; PANEL])),
    ) -> ColumnBlock {
        let first = panels.start * PANEL;
        let columns = (panels.end * PANEL).min(self.outputs).saturating_sub(first);
        let mut block = ColumnBlock::zeros(first, rows, columns);
        multiply(&mut |row, panel, values| {
            let at = panel * PANEL - first;
            let width = PANEL.min(columns - at);
            block.values_mut()[row * columns + at..][..width].copy_from_slice(&values[..width]);
        });
        block
    }

    /// Calls `put` with each row, panel and its products.
    fn multiply_blocks(
        &self,
        rows: &QuantizedRows,
        panels: Range<usize>,
        put: &mut dyn FnMut(usize, usize, &[f32; PANEL]),
    ) {
        #[cfg(target_arch = "x86_64")]
        let rest = self.multiply_on_tiles(rows, panels.clone(), put)..rows.rows();
        for number in panels {
            let panel = self.panel(number);
            let mut put = |row: usize, values: &[f32; PANEL]| put(row, number, values);
            #[cfg(target_arch = "x86_64")]
            if super::avx512::multiply(self.isa, &panel, rows, rest.clone(), &mut put)
                || super::avx2::multiply(self.isa, &panel, rows, rest.clone(), &mut put)
            {
                continue;
            }
            #[cfg(target_arch = "aarch64")]
            if self.isa == Isa::Other {
                super::neon::multiply(&panel, rows, 0..rows.rows(), &mut put);
                continue;
            }
            self.isa.run(portable::Multiply { panel: &panel, rows, put: &mut put });
        }
    }

    /// Multiplies rows on tiles, if there are any. Returns how many.
    #[cfg(target_arch = "x86_64")]
    fn multiply_on_tiles(
        &self,
        rows: &QuantizedRows,
        panels: Range<usize>,
        put: &mut dyn FnMut(usize, usize, &[f32; PANEL]),
    ) -> usize {
        let full = rows.rows() / TILE_ROWS;
        let rest = rows.rows() % TILE_ROWS;
        // Vectors multiply fewer rows faster.
        let least = match self.format.width {
            CodeWidth::Four => 6,
            CodeWidth::Six | CodeWidth::Eight => 10,
        };
        let mut done = 0;
        for (range, height) in [(0..full, TILE_ROWS), (full..full + 1, rest)] {
            if range.is_empty() || height < least {
                continue;
            }
            let Some(mut unit) = ByteTiles::of(self.isa, self.format, height) else { return 0 };
            done += range.len() * height;
            // Tiles whose rows stay in the L2 cache for all panels.
            let step = (L2_BYTES / (2 * TILE_ROWS * self.inputs)).max(1);
            for first in range.clone().step_by(step) {
                for number in panels.clone() {
                    let part = first..(first + step).min(range.end);
                    let put = &mut |row: usize, values: &[f32; PANEL]| put(row, number, values);
                    tiles::multiply(&mut unit, &self.panel(number), rows, part, put);
                }
            }
        }
        done
    }

    /// The weights of output `output`, in f32.
    pub fn row(&self, output: usize, to: &mut [f32]) {
        let panel = self.panel(output / PANEL);
        let (column, format) = (output % PANEL, self.format);
        for (group, to) in to.chunks_exact_mut(format.group).enumerate() {
            let (scale, minimum) = panel.scale_and_minimum(group, column);
            for (input, to) in to.iter_mut().enumerate() {
                let code = panel.code(group, input, column);
                *to = if format.has_minimums {
                    scale * f32::from(code) - minimum
                } else {
                    scale * (f32::from(code) - f32::from(format.zero))
                };
            }
        }
    }
}
