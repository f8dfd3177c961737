//! A matrix of quantized weights and its products.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::avx512::prefetch_factors;
use super::format::QuantFormat;
#[cfg(target_arch = "x86_64")]
use super::instructions::{has_byte_vectors, has_short_vectors, has_vectors};
use super::panel::Panel;
#[cfg(target_arch = "x86_64")]
use super::rows::{BlockRows, LEAST_TILE_ROWS, TILE_ROWS};
use super::rows::{ByteBlocks, ByteRows, QuantizedRows};
#[cfg(target_arch = "x86_64")]
use super::tiles::{ByteTiles, Part, TileProducts};
use super::{PANEL, portable};
use crate::buffer::Buffer;
#[cfg(target_arch = "x86_64")]
use crate::gemm::Product;
use crate::gemm::{Epilogue, OutputTile, PackedRows, PanelScratch};
use crate::isa::Isa;

/// Bytes of activations that stay in the L2 cache.
#[cfg(target_arch = "x86_64")]
const L2_BYTES: usize = 1 << 20;
/// Panels that are multiplied with a part of the rows, one after the other.
#[cfg(target_arch = "x86_64")]
const TOGETHER: usize = 4;

/// A matrix `[outputs, inputs]` of quantized weights, packed in panels of 16 outputs. Four consecutive inputs of an output
/// are adjacent: a word of a vector.
#[derive(Clone)]
pub struct QuantMatrix {
    pub(super) isa: Isa,
    pub(super) format: QuantFormat,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// Groups and super-blocks of an output.
    pub(super) groups: usize,
    pub(super) blocks: usize,
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
        let QuantMatrix { format, groups, blocks, .. } = *self;
        let of_panel = |length: usize| number * length..(number + 1) * length;
        let (integers, factors) = (of_panel(groups * PANEL), of_panel(blocks * PANEL));
        Panel {
            format,
            codes: &self.codes[of_panel(groups * format.group_bytes())],
            // Some formats have none of these.
            group_scales: self.group_scales.get(integers.clone()).unwrap_or_default(),
            group_minimums: self.group_minimums.get(integers).unwrap_or_default(),
            scales: &self.scales[factors.clone()],
            minimums: self.minimums.get(factors).unwrap_or_default(),
        }
    }

    /// Computes `rows · weightsᵀ` for the outputs of some panels. The first output of the matrix is column `first` of the
    /// destination.
    pub fn multiply(
        &self,
        rows: &QuantizedRows,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut dyn Epilogue,
    ) {
        assert!(rows.inputs() == self.inputs && panels.end <= self.panels());
        let mut to = PanelOutput::new(self, first, epilogue);
        #[cfg(target_arch = "x86_64")]
        let rest = self.multiply_on_tiles(rows, panels.clone(), &mut to)..rows.rows();
        #[cfg(not(target_arch = "x86_64"))]
        let rest = 0..rows.rows();
        for number in panels.filter(|_| !rest.is_empty()) {
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

    /// Whether rows of f32 are multiplied faster than rows of 16 bits: with vectors of 256 bits that have no dot products of
    /// bytes.
    pub fn takes_floats(isa: Isa) -> bool {
        cfg_select! {
            target_arch = "x86_64" => {
                has_short_vectors(isa) && !has_byte_vectors(isa) && !has_vectors(isa)
            }
            _ => {
                let _ = isa;
                false
            }
        }
    }

    /// The same with rows of f32, packed for the same instructions. Only where they
    /// [are faster](QuantMatrix::takes_floats).
    pub fn multiply_floats(
        &self,
        rows: &PackedRows,
        panels: Range<usize>,
        first: usize,
        scratch: &mut PanelScratch,
        epilogue: &mut dyn Epilogue,
    ) {
        assert!(QuantMatrix::takes_floats(self.isa) && panels.end <= self.panels());
        // Its panels have as many columns.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2.dispatch(Product { matrix: self, rows, panels, first, scratch, epilogue });
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (rows, first, scratch, epilogue);
    }

    /// The same with rows of bytes that have a scale per 32 inputs. Only if the matrix does not take
    /// [a scale per 256](QuantMatrix::takes_byte_blocks).
    pub fn multiply_bytes(
        &self,
        rows: &ByteRows,
        panels: Range<usize>,
        first: usize,
        epilogue: &mut dyn Epilogue,
    ) {
        assert!(!self.takes_byte_blocks() && rows.inputs() == self.inputs && panels.end <= self.panels());
        let mut to = PanelOutput::new(self, first, epilogue);
        #[cfg(target_arch = "x86_64")]
        let rest = self.multiply_on_tiles(rows, panels.clone(), &mut to)..rows.rows();
        #[cfg(not(target_arch = "x86_64"))]
        let rest = 0..rows.rows();
        for number in panels.filter(|_| !rest.is_empty()) {
            let panel = self.panel(number);
            to.store(number, rest.clone(), |put| {
                #[cfg(target_arch = "x86_64")]
                if super::avx512_rows::multiply(self.isa, &panel, rows, rest.clone(), put)
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
        epilogue: &mut dyn Epilogue,
    ) {
        assert!(self.takes_byte_blocks() && rows.inputs() == self.inputs && panels.end <= self.panels());
        #[cfg(target_arch = "x86_64")]
        {
            let mut to = PanelOutput::new(self, first, epilogue);
            let rest = self.multiply_on_tiles(rows, panels.clone(), &mut to)..rows.rows();
            for number in panels.filter(|_| !rest.is_empty()) {
                to.store(number, rest.clone(), |put| {
                    super::avx512_rows::multiply(self.isa, &self.panel(number), rows, rest.clone(), put);
                });
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (first, epilogue);
    }

    /// Multiplies rows on tiles, if there are any. Returns how many.
    #[cfg(target_arch = "x86_64")]
    fn multiply_on_tiles<B: TileProducts>(
        &self,
        rows: &BlockRows<B>,
        panels: Range<usize>,
        to: &mut PanelOutput<'_>,
    ) -> usize {
        // Vectors multiply fewer rows faster.
        let is_last_full = rows.rows() % TILE_ROWS >= LEAST_TILE_ROWS;
        let tiles = rows.rows() / TILE_ROWS + usize::from(is_last_full);
        let unit = || B::unit(self.isa, self.format);
        let Some(mut unit) = (tiles > 0).then(unit).flatten() else { return 0 };
        // Tiles whose rows stay in the L2 cache for all panels.
        let step = (L2_BYTES / (2 * TILE_ROWS * self.inputs)).max(2);
        for first in (0..tiles).step_by(step) {
            let own = first..(first + step).min(tiles);
            self.multiply_tiles(&mut unit, rows, own, panels.clone(), to);
        }
        rows.rows().min(tiles * TILE_ROWS)
    }

    /// Multiplies some tiles of rows with some panels: part by part of a few panels.
    #[cfg(target_arch = "x86_64")]
    fn multiply_tiles<B: TileProducts>(
        &self,
        unit: &mut ByteTiles,
        rows: &BlockRows<B>,
        tiles: Range<usize>,
        panels: Range<usize>,
        to: &mut PanelOutput<'_>,
    ) {
        let (blocks, size) = (self.inputs.div_ceil(B::INPUTS), tiles.len() * TILE_ROWS);
        let (groups, per_block) = (self.groups, B::INPUTS / self.format.group);
        let part = B::PART.min(blocks);
        let parts = panels.clone().step_by(TOGETHER).flat_map(|first| {
            let own = first..panels.end.min(first + TOGETHER);
            (0..blocks).step_by(part).flat_map(move |start| {
                own.clone().map(move |panel| (panel, panel - first, start..blocks.min(start + part)))
            })
        });
        let mut parts = parts.peekable();
        let mut sums = vec![0.0; TOGETHER * size * PANEL];
        while let Some((number, at, own)) = parts.next() {
            let sums = &mut sums[at * size * PANEL..][..size * PANEL];
            if own.start == 0 {
                sums.fill(0.0);
            }
            let next = parts.peek().map_or(&[][..], |(next, _, own)| {
                let (panel, last) = (self.panel(*next), (own.end * per_block).min(groups));
                prefetch_factors(&panel, own.start * per_block..last);
                panel.group_codes(own.start * per_block..last)
            });
            let is_last = own.end == blocks;
            let part = Part { blocks: own, tiles: tiles.clone(), next };
            B::add(unit, &self.panel(number), rows, &part, sums.as_chunks_mut().0);
            if is_last {
                let first = tiles.start * TILE_ROWS;
                to.store_values(number, first..rows.rows().min(tiles.end * TILE_ROWS), sums);
            }
        }
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
struct PanelOutput<'a> {
    matrix: &'a QuantMatrix,
    /// The column of the matrix's first output.
    first: usize,
    /// Products of some rows with a panel.
    values: Vec<f32>,
    epilogue: &'a mut dyn Epilogue,
}

impl<'a> PanelOutput<'a> {
    fn new(matrix: &'a QuantMatrix, first: usize, epilogue: &'a mut dyn Epilogue) -> PanelOutput<'a> {
        PanelOutput { matrix, first, values: Vec::new(), epilogue }
    }

    /// Stores the products of some rows with panel `number`. `multiply` passes each row and its products on.
    fn store(&mut self, number: usize, rows: Range<usize>, multiply: impl FnOnce(&mut Put<'_>)) {
        let mut values = std::mem::take(&mut self.values);
        values.resize(rows.len() * PANEL, 0.0);
        let (to, _) = values.as_chunks_mut();
        multiply(&mut |row, products| to[row - rows.start] = *products);
        self.store_values(number, rows, &mut values);
        self.values = values;
    }

    /// Stores the products of some rows with panel `number`, each 16 values.
    fn store_values(&mut self, number: usize, rows: Range<usize>, values: &mut [f32]) {
        let columns = PANEL.min(self.matrix.outputs - number * PANEL);
        let column = self.first + number * PANEL;
        let values = &mut values[..rows.len() * PANEL];
        let tile =
            OutputTile { row: rows.start, column, rows: rows.len(), columns, values, panel_width: PANEL };
        self.epilogue.store(self.matrix.isa, tile);
    }
}
