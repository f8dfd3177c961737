//! Rows of activations, quantized to 16 bits.

use super::codes::{RowBlock, quantize};
use super::{BLOCK, GROUP};
use crate::isa::{Isa, Vectorized};

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;

/// Rows of activations, quantized to 16 bits, with a scale per 256 inputs.
///
/// Rows are in tiles of 16, the last of which may have fewer. In a tile, the rows of a block are adjacent.
#[derive(Clone, Debug, Default)]
pub struct QuantizedRows {
    rows: usize,
    inputs: usize,
    blocks: Vec<RowBlock>,
}

impl QuantizedRows {
    /// Quantizes `rows` rows of `inputs` values that are `stride` apart. A block with a value that is not finite has the
    /// scale NaN, and so do its products. `inputs` is a multiple of 32.
    pub fn quantize(isa: Isa, values: &[f32], stride: usize, rows: usize, inputs: usize) -> QuantizedRows {
        let mut quantized = QuantizedRows::zeros(rows, inputs);
        quantized.parts(usize::MAX).for_each(|mut part| part.quantize(isa, values, stride));
        quantized
    }

    /// `rows` rows of `inputs` zeros. `inputs` is a multiple of 32.
    pub fn zeros(rows: usize, inputs: usize) -> QuantizedRows {
        assert!(inputs.is_multiple_of(GROUP), "{inputs} inputs are no whole groups");
        QuantizedRows { rows, inputs, blocks: vec![RowBlock::ZEROS; rows * inputs.div_ceil(BLOCK)] }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Parts of the rows, to be quantized one by one: those of a tile, at most `blocks` blocks of each.
    pub fn parts(&mut self, blocks: usize) -> impl Iterator<Item = PartMut<'_>> {
        let (rows, inputs) = (self.rows, self.inputs);
        let of_row = inputs.div_ceil(BLOCK).max(1);
        let tiles = self.blocks.chunks_mut(TILE_ROWS * of_row).enumerate();
        tiles.flat_map(move |(tile, all)| {
            let first = tile * TILE_ROWS;
            let height = TILE_ROWS.min(rows - first);
            let count = blocks.clamp(1, of_row);
            let parts = all.chunks_mut(count * height).enumerate();
            parts.map(move |(part, blocks)| PartMut { first, height, inputs, block: part * count, blocks })
        })
    }

    /// `R` rows from `row` on. They are in one tile.
    #[inline(always)]
    pub(super) fn some<const R: usize>(&self, row: usize) -> SomeRows<'_, R> {
        let (tile, skipped) = (row / TILE_ROWS, row % TILE_ROWS);
        let rows = self.tile(tile);
        assert!(skipped + R <= rows.height, "rows of two tiles");
        SomeRows { height: rows.height, blocks: &rows.blocks[skipped..] }
    }

    /// The rows of a tile.
    pub(super) fn tile(&self, tile: usize) -> TileRows<'_> {
        let (first, blocks) = (tile * TILE_ROWS, self.inputs.div_ceil(BLOCK));
        let height = TILE_ROWS.min(self.rows - first);
        TileRows { height, blocks: &self.blocks[first * blocks..][..height * blocks] }
    }
}

/// The rows of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileRows<'a> {
    /// Number of rows: the distance between blocks.
    pub(super) height: usize,
    blocks: &'a [RowBlock],
}

impl<'a> TileRows<'a> {
    /// A block of each row.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn block(&self, block: usize) -> &'a [RowBlock] {
        &self.blocks[block * self.height..][..self.height]
    }
}

/// `R` rows of a tile.
#[derive(Clone, Copy)]
pub(super) struct SomeRows<'a, const R: usize> {
    /// Rows of the tile: the distance between blocks.
    height: usize,
    blocks: &'a [RowBlock],
}

impl<'a, const R: usize> SomeRows<'a, R> {
    /// A block of each row.
    #[inline(always)]
    pub(super) fn block(&self, block: usize) -> &'a [RowBlock; R] {
        &self.blocks[block * self.height..].as_chunks().0[0]
    }
}

/// Some blocks of the rows of a tile, to be quantized.
pub struct PartMut<'a> {
    /// The first row.
    first: usize,
    /// Number of rows.
    height: usize,
    /// Values per row.
    inputs: usize,
    /// The first block.
    block: usize,
    blocks: &'a mut [RowBlock],
}

impl PartMut<'_> {
    /// Quantizes the blocks. `values` are those of all rows, which are `stride` apart.
    pub fn quantize(&mut self, isa: Isa, values: &[f32], stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if super::instructions::has_vectors(isa) {
            // SAFETY: the processor has these instructions.
            let block = |values: &_, to: &mut _| unsafe { super::codes_avx512::quantize(values, to) };
            return self.each_block(values, stride, block);
        }
        isa.run(Quantize { values, stride, to: self });
    }

    #[inline(always)]
    fn each_block(&mut self, values: &[f32], stride: usize, quantize: impl Fn(&[f32], &mut RowBlock)) {
        let PartMut { first, height, inputs, block, blocks } = self;
        let of_row = blocks.len() / *height;
        for row in 0..*height {
            let values = &values[(*first + row) * stride..][..*inputs][*block * BLOCK..];
            for (block, values) in values.chunks(BLOCK).take(of_row).enumerate() {
                quantize(values, &mut blocks[block * *height + row]);
            }
        }
    }
}

struct Quantize<'a, 'b> {
    values: &'a [f32],
    stride: usize,
    to: &'a mut PartMut<'b>,
}

impl Vectorized for Quantize<'_, '_> {
    #[inline(always)]
    fn run(self) {
        self.to.each_block(self.values, self.stride, quantize);
    }
}
