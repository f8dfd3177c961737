//! A matrix of quantized weights and its products.

use std::ops::Range;

use super::byte_rows::ByteRows;
#[cfg(target_arch = "x86_64")]
use super::format::CodeWidth;
use super::format::QuantFormat;
#[cfg(target_arch = "x86_64")]
use super::instructions::has_vectors;
use super::panel::Panel;
#[cfg(target_arch = "x86_64")]
use super::rows::{BlockRows, LEAST_TILE_ROWS, QuantizedBlock, TILE_ROWS};
use super::rows::{ByteBlocks, QuantizedRows};
#[cfg(target_arch = "x86_64")]
use super::tiles::{self, ByteTiles};
use super::{PANEL, portable};
use crate::buffer::Buffer;
use crate::gemm::{Epilogue, OutputTile};
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

    /// Computes `rows · weightsᵀ` for the outputs of some panels. The first output of the matrix is column `first` of the
    /// destination.
    pub fn multiply(
        &self,
        rows: &QuantizedRows,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut impl Epilogue,
    ) {
        assert!(rows.inputs() == self.inputs && panels.end <= self.panels());
        let mut to = PanelOutput::new(self, first, rows.rows(), epilogue);
        #[cfg(target_arch = "x86_64")]
        let rest = {
            let tiles = |unit: &mut ByteTiles, panel: &Panel<'_>, part, put: &mut Put<'_>| {
                tiles::multiply(unit, panel, rows, part, put);
            };
            self.multiply_on_tiles(rows, panels.clone(), &mut to, tiles)..rows.rows()
        };
        #[cfg(not(target_arch = "x86_64"))]
        let rest = 0..rows.rows();
        if rest.is_empty() {
            return;
        }
        for number in panels {
            let panel = self.panel(number);
            to.store(number, rest.clone(), |put| {
                #[cfg(target_arch = "x86_64")]
                if super::avx512::multiply(self.isa, &panel, rows, rest.clone(), put)
                    || super::avx2::multiply(self.isa, &panel, rows, rest.clone(), put)
                {
                    return;
                }
                #[cfg(target_arch = "aarch64")]
                if self.isa == Isa::Other {
                    return super::neon::multiply(&panel, rows, rest.clone(), put);
                }
                self.isa.run(portable::Multiply { panel: &panel, rows, put });
            });
        }
    }

    /// The same with rows of bytes.
    pub fn multiply_bytes(
        &self,
        rows: &ByteRows,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut impl Epilogue,
    ) {
        assert!(rows.inputs() == self.inputs && panels.end <= self.panels());
        let mut to = PanelOutput::new(self, first, rows.rows(), epilogue);
        for number in panels {
            let panel = self.panel(number);
            to.store(number, 0..rows.rows(), |put| {
                #[cfg(target_arch = "x86_64")]
                if super::avx512_bytes::multiply(self.isa, &panel, rows, put)
                    || super::avx2_bytes::multiply(self.isa, &panel, rows, put)
                {
                    return;
                }
                #[cfg(target_arch = "aarch64")]
                if self.isa == Isa::Other && super::neon_bytes::multiply(&panel, rows, put) {
                    return;
                }
                self.isa.run(portable::MultiplyBytes { panel: &panel, rows, put });
            });
        }
    }

    /// Whether rows of bytes have a scale per 256 inputs: with super-blocks, if there are vectors for it.
    pub fn takes_byte_blocks(&self) -> bool {
        cfg_select! {
            target_arch = "x86_64" => self.format.is_super() && has_vectors(self.isa),
            _ => false,
        }
    }

    /// The same with rows of bytes that have a scale per 256 inputs. Only if the matrix
    /// [takes them](QuantMatrix::takes_byte_blocks).
    pub fn multiply_byte_blocks(
        &self,
        rows: &ByteBlocks,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut impl Epilogue,
    ) {
        assert!(self.takes_byte_blocks() && rows.inputs() == self.inputs && panels.end <= self.panels());
        #[cfg(target_arch = "x86_64")]
        {
            let mut to = PanelOutput::new(self, first, rows.rows(), epilogue);
            let tiles = |unit: &mut ByteTiles, panel: &Panel<'_>, part, put: &mut Put<'_>| {
                tiles::multiply_bytes(unit, panel, rows, part, put);
            };
            let done = self.multiply_on_tiles(rows, panels.clone(), &mut to, tiles);
            let rest = done..rows.rows();
            for number in panels.filter(|_| done < rows.rows()) {
                to.store(number, rest.clone(), |put| {
                    super::avx512_blocks::multiply(self.isa, &self.panel(number), rows, rest.clone(), put);
                });
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (first, epilogue);
    }

    /// Multiplies rows on tiles, if there are any. Returns how many. `multiply` multiplies some tiles of rows with a panel.
    #[cfg(target_arch = "x86_64")]
    fn multiply_on_tiles<E: Epilogue, B: QuantizedBlock>(
        &self,
        rows: &BlockRows<B>,
        panels: Range<usize>,
        to: &mut PanelOutput<'_, E>,
        mut multiply: impl FnMut(&mut ByteTiles, &Panel<'_>, Range<usize>, &mut Put<'_>),
    ) -> usize {
        // Vectors multiply fewer rows faster.
        let least = match self.format.width {
            CodeWidth::Four => LEAST_TILE_ROWS,
            CodeWidth::Six | CodeWidth::Eight => 10,
        };
        let is_last_full = rows.rows() % TILE_ROWS >= least;
        let tiles = rows.rows() / TILE_ROWS + usize::from(is_last_full);
        let Some(mut unit) = ByteTiles::of(self.isa, self.format).filter(|_| tiles > 0) else { return 0 };
        // Tiles whose rows stay in the L2 cache for all panels.
        let step = (L2_BYTES / (2 * TILE_ROWS * self.inputs)).max(2);
        for first in (0..tiles).step_by(step) {
            let part = first..(first + step).min(tiles);
            let own = part.start * TILE_ROWS..rows.rows().min(part.end * TILE_ROWS);
            for number in panels.clone() {
                to.store(number, own.clone(), |put| {
                    multiply(&mut unit, &self.panel(number), part.clone(), put);
                });
            }
        }
        rows.rows().min(tiles * TILE_ROWS)
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

/// Takes a row and its products with a panel.
type Put<'a> = dyn FnMut(usize, &[f32; PANEL]) + 'a;

/// The destination of the products with a matrix: they are passed to an epilogue panel by panel.
struct PanelOutput<'a, E> {
    matrix: &'a QuantMatrix,
    /// The column of the matrix's first output.
    first: usize,
    /// Products of some rows with a panel.
    values: Vec<f32>,
    epilogue: &'a mut E,
}

impl<'a, E: Epilogue> PanelOutput<'a, E> {
    fn new(matrix: &'a QuantMatrix, first: usize, rows: usize, epilogue: &'a mut E) -> PanelOutput<'a, E> {
        PanelOutput { matrix, first, values: vec![0.0; rows * PANEL], epilogue }
    }

    /// Stores the products of some rows with panel `number`. `multiply` passes each row and its products on.
    fn store(&mut self, number: usize, rows: Range<usize>, multiply: impl FnOnce(&mut Put<'_>)) {
        let values = &mut self.values[..rows.len() * PANEL];
        let (to, _) = values.as_chunks_mut();
        multiply(&mut |row, products| to[row - rows.start] = *products);
        let columns = PANEL.min(self.matrix.outputs - number * PANEL);
        let column = self.first + number * PANEL;
        let tile =
            OutputTile { row: rows.start, column, rows: rows.len(), columns, values, panel_width: PANEL };
        tile.store(self.matrix.isa, self.epilogue);
    }
}
