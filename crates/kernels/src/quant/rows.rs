//! Rows of activations, quantized in blocks.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use super::byte_codes::{self, RowGroup};
use super::codes::{self, ByteBlock, RowBlock};
use super::{BLOCK, GROUP};
use crate::isa::{Isa, Vectorized};

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Fewest rows of a tile that is computed on tiles: vectors multiply fewer rows faster.
pub(super) const LEAST_TILE_ROWS: usize = 12;

/// The codes of some inputs of a row, which have a scale.
pub trait QuantizedBlock: Copy + Send + Sync {
    /// Inputs of a block.
    const INPUTS: usize;
    /// Zeros.
    const ZEROS: Self;

    /// Quantizes the values of a block, or fewer at the end of a row.
    #[doc(hidden)]
    fn quantize(values: &[f32], to: &mut Self);

    /// The same with AVX-512.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[doc(hidden)]
    #[cfg(target_arch = "x86_64")]
    unsafe fn quantize_avx512(values: &[f32], to: &mut Self);
}

impl QuantizedBlock for RowBlock {
    const INPUTS: usize = BLOCK;
    const ZEROS: RowBlock = RowBlock::ZEROS;

    #[inline(always)]
    fn quantize(values: &[f32], to: &mut RowBlock) {
        codes::quantize(values, to);
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn quantize_avx512(values: &[f32], to: &mut RowBlock) {
        // SAFETY: the caller guarantees the instructions.
        unsafe { super::codes_avx512::quantize(values, to) }
    }
}

impl QuantizedBlock for ByteBlock {
    const INPUTS: usize = BLOCK;
    const ZEROS: ByteBlock = ByteBlock::ZEROS;

    #[inline(always)]
    fn quantize(values: &[f32], to: &mut ByteBlock) {
        codes::quantize_bytes(values, to);
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn quantize_avx512(values: &[f32], to: &mut ByteBlock) {
        // SAFETY: the caller guarantees the instructions.
        unsafe { super::codes_avx512::quantize_block(values, to) }
    }
}

impl QuantizedBlock for RowGroup {
    const INPUTS: usize = GROUP;
    const ZEROS: RowGroup = RowGroup::ZEROS;

    #[inline(always)]
    fn quantize(values: &[f32], to: &mut RowGroup) {
        byte_codes::quantize(&values.as_chunks().0[0], to);
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn quantize_avx512(values: &[f32], to: &mut RowGroup) {
        // SAFETY: the caller guarantees the instructions.
        unsafe { super::codes_avx512::quantize_bytes(&values.as_chunks().0[0], to) }
    }
}

/// Rows of activations, quantized in blocks of `B`.
///
/// Rows are in tiles of 16. In a tile, the rows of a block are adjacent.
#[derive(Clone, Debug)]
pub struct BlockRows<B> {
    rows: usize,
    inputs: usize,
    /// Of these rows, and then of longer rows before.
    blocks: Vec<B>,
}

impl<B> Default for BlockRows<B> {
    fn default() -> BlockRows<B> {
        BlockRows { rows: 0, inputs: 0, blocks: Vec::new() }
    }
}

/// Rows of activations of 16 bits with a scale per 256 inputs.
pub type QuantizedRows = BlockRows<RowBlock>;
/// Rows of activations of 8 bits with a scale per 256 inputs, as GGML's `Q8_K`: half the work of 16 bits.
pub type ByteBlocks = BlockRows<ByteBlock>;
/// Rows of activations of 8 bits with a scale per 32 inputs, as GGML's `Q8_0`.
pub type ByteRows = BlockRows<RowGroup>;

impl ByteRows {
    /// Whether products with rows of 8 bits have vector code. Plain code is slower than with [16 bits](QuantizedRows).
    pub fn are_vectorized(isa: Isa) -> bool {
        cfg_select! {
            target_arch = "x86_64" => super::instructions::has_short_vectors(isa),
            target_arch = "aarch64" => isa == Isa::Other && crate::detect::has_dot_products(),
            _ => false,
        }
    }
}

/// Number of rows of a tile for which there is memory: all that a tile of the processor reads.
fn height(rows: usize, first: usize) -> usize {
    let height = TILE_ROWS.min(rows - first);
    if height >= LEAST_TILE_ROWS { TILE_ROWS } else { height }
}

impl<B: QuantizedBlock> BlockRows<B> {
    /// Quantizes `rows` rows of `inputs` values that are `stride` apart. A block with a value that is not finite has the
    /// scale NaN, and so do its products. `inputs` is a multiple of 32.
    pub fn quantize(isa: Isa, values: &[f32], stride: usize, rows: usize, inputs: usize) -> BlockRows<B> {
        let mut quantized = BlockRows::default();
        quantized.shape(rows, inputs);
        quantized.parts(usize::MAX).for_each(|mut part| part.quantize(isa, values, stride));
        quantized
    }

    /// Sets the shape. What is in memory stays: each row is to be quantized. `inputs` is a multiple of 32.
    pub fn shape(&mut self, rows: usize, inputs: usize) {
        assert!(inputs.is_multiple_of(GROUP), "{inputs} inputs are no whole groups");
        (self.rows, self.inputs) = (rows, inputs);
        if self.length() > self.blocks.len() {
            self.blocks.resize(self.length(), B::ZEROS);
        }
    }

    /// Number of blocks of all rows.
    fn length(&self) -> usize {
        let whole = self.rows / TILE_ROWS * TILE_ROWS;
        (whole + height(self.rows, whole)) * self.inputs.div_ceil(B::INPUTS)
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<B>()
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
    pub fn parts(&mut self, blocks: usize) -> impl Iterator<Item = PartMut<'_, B>> {
        let (rows, inputs, length) = (self.rows, self.inputs, self.length());
        let of_row = inputs.div_ceil(B::INPUTS).max(1);
        let tiles = self.blocks[..length].chunks_mut(TILE_ROWS * of_row).enumerate();
        tiles.flat_map(move |(tile, all)| {
            let first = tile * TILE_ROWS;
            let height = height(rows, first);
            let rows = TILE_ROWS.min(rows - first);
            let count = blocks.clamp(1, of_row);
            let parts = all.chunks_mut(count * height).enumerate();
            parts.map(move |(part, blocks)| PartMut {
                first,
                rows,
                height,
                inputs,
                block: part * count,
                blocks,
            })
        })
    }

    /// `R` rows from `row` on. They are in one tile.
    #[inline(always)]
    pub(super) fn some<const R: usize>(&self, row: usize) -> SomeRows<'_, R, B> {
        let (tile, skipped) = (row / TILE_ROWS, row % TILE_ROWS);
        let rows = self.tile(tile);
        assert!(skipped + R <= rows.rows, "rows of two tiles");
        SomeRows { height: rows.height, blocks: &rows.blocks[skipped..] }
    }

    /// The rows of a tile.
    pub(super) fn tile(&self, tile: usize) -> TileRows<'_, B> {
        let (first, blocks) = (tile * TILE_ROWS, self.inputs.div_ceil(B::INPUTS));
        let height = height(self.rows, first);
        let rows = TILE_ROWS.min(self.rows - first);
        TileRows { rows, height, blocks: &self.blocks[first * blocks..][..height * blocks] }
    }
}

/// The rows of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileRows<'a, B> {
    /// Number of rows.
    rows: usize,
    /// The distance between blocks.
    height: usize,
    blocks: &'a [B],
}

impl<'a, B> TileRows<'a, B> {
    /// A block of each row.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn block(&self, block: usize) -> &'a [B] {
        &self.blocks[block * self.height..][..self.rows]
    }

    /// The blocks of some numbers, each with memory for all rows of a tile. There are at least 12 rows.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn padded(&self, blocks: Range<usize>) -> &'a [[B; TILE_ROWS]] {
        assert!(self.height == TILE_ROWS, "{} rows are no tile", self.rows);
        &self.blocks.as_chunks().0[blocks]
    }
}

/// `R` rows of a tile.
#[derive(Clone, Copy)]
pub(super) struct SomeRows<'a, const R: usize, B = RowBlock> {
    /// The distance between blocks.
    height: usize,
    blocks: &'a [B],
}

impl<'a, const R: usize, B> SomeRows<'a, R, B> {
    /// A block of each row.
    #[inline(always)]
    pub(super) fn block(&self, block: usize) -> &'a [B; R] {
        &self.blocks[block * self.height..].as_chunks().0[0]
    }

    /// Each block of each row.
    #[inline(always)]
    pub(super) fn blocks(self) -> impl Iterator<Item = &'a [B; R]> {
        self.blocks.chunks(self.height).map(|blocks| &blocks.as_chunks().0[0])
    }
}

/// Some blocks of the rows of a tile, to be quantized.
pub struct PartMut<'a, B> {
    /// The first row.
    first: usize,
    /// Number of rows.
    rows: usize,
    /// The distance between blocks.
    height: usize,
    /// Values per row.
    inputs: usize,
    /// The first block.
    block: usize,
    blocks: &'a mut [B],
}

impl<B: QuantizedBlock> PartMut<'_, B> {
    /// Quantizes the blocks. `values` are those of all rows, which are `stride` apart.
    pub fn quantize(&mut self, isa: Isa, values: &[f32], stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if super::instructions::has_vectors(isa) {
            // SAFETY: the processor has these instructions.
            let block = |values: &_, to: &mut _| unsafe { B::quantize_avx512(values, to) };
            return self.each_block(values, stride, block);
        }
        isa.run(Quantize { values, stride, to: self });
    }

    #[inline(always)]
    fn each_block(&mut self, values: &[f32], stride: usize, quantize: impl Fn(&[f32], &mut B)) {
        let PartMut { first, rows, height, inputs, block, blocks } = self;
        let of_row = blocks.len() / *height;
        for row in 0..*rows {
            let values = &values[(*first + row) * stride..][..*inputs][*block * B::INPUTS..];
            for (block, values) in values.chunks(B::INPUTS).take(of_row).enumerate() {
                quantize(values, &mut blocks[block * *height + row]);
            }
        }
    }
}

struct Quantize<'a, 'b, B> {
    values: &'a [f32],
    stride: usize,
    to: &'a mut PartMut<'b, B>,
}

impl<B: QuantizedBlock> Vectorized for Quantize<'_, '_, B> {
    #[inline(always)]
    fn run(self) {
        self.to.each_block(self.values, self.stride, B::quantize);
    }
}
