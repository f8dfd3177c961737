//! The paged KV cache of a decoder, on its device.

use candle_core::{DType, Device, Result, Tensor};
use sconce_core::batch::Batch;

use crate::description::Description;
use crate::step::BLOCK_SIZE;

/// Blocks that the first step allocates at least: 1024 tokens.
const FIRST_BLOCKS: usize = 64;

/// Cached keys and values of all layers. Memory is allocated when blocks are first used, in doubling sizes.
pub(super) struct KvCache {
    device: Device,
    dtype: DType,
    /// Columns of keys, and of values.
    width: usize,
    layers: usize,
    reserved: usize,
    allocated: usize,
    /// Keys and values of each layer, `[allocated · block size, width]`. Empty before the first step.
    rows: Vec<[Tensor; 2]>,
}

/// Where a step stores the keys and values of its tokens: runs of adjacent rows.
pub(super) struct CacheRows(Vec<Run>);

struct Run {
    /// The first token of the batch.
    token: usize,
    /// The first row of the cache.
    row: usize,
    count: usize,
}

/// The row of the token at `position` of a sequence with these blocks.
pub(super) fn row(blocks: &[u32], position: usize) -> usize {
    blocks[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE
}

impl CacheRows {
    /// The rows of the tokens of a step.
    pub(super) fn of(batch: &Batch) -> CacheRows {
        let mut runs: Vec<Run> = Vec::new();
        for (sequence, cached) in batch.sequences.iter().zip(&batch.cached) {
            for token in 0..sequence.length {
                let (token, row) = (sequence.start + token, row(&cached.blocks, cached.length + token));
                match runs.last_mut() {
                    Some(run) if run.row + run.count == row => run.count += 1,
                    Some(_) | None => runs.push(Run { token, row, count: 1 }),
                }
            }
        }
        CacheRows(runs)
    }
}

impl KvCache {
    /// An empty cache.
    pub(super) fn new(d: &Description, device: &Device, dtype: DType) -> KvCache {
        let (width, layers) = (d.kv_heads * d.head_dim, d.layers);
        KvCache { device: device.clone(), dtype, width, layers, reserved: 0, allocated: 0, rows: Vec::new() }
    }

    /// Bytes of a block, over all layers.
    pub(super) fn block_bytes(&self) -> usize {
        2 * self.layers * BLOCK_SIZE * self.width * self.dtype.size_in_bytes()
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.reserved
    }

    /// Resizes to `blocks` blocks, and drops the content. Returns whether so many can be addressed.
    pub(super) fn reserve(&mut self, blocks: usize) -> bool {
        (self.reserved, self.allocated) = (0, 0);
        self.rows.clear();
        let bytes = blocks.checked_mul(self.block_bytes());
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return false;
        }
        self.reserved = blocks;
        true
    }

    /// Allocates memory for the blocks of a step.
    pub(super) fn allocate_for(&mut self, batch: &Batch) -> Result<()> {
        let blocks = batch.cached.iter().flat_map(|cached| &cached.blocks);
        self.allocate(blocks.max().map_or(0, |last| *last as usize + 1))
    }

    fn allocate(&mut self, blocks: usize) -> Result<()> {
        if blocks <= self.allocated {
            return Ok(());
        }
        let blocks = blocks.max(2 * self.allocated).max(FIRST_BLOCKS).min(self.reserved.max(blocks));
        let empty = || Tensor::zeros((blocks * BLOCK_SIZE, self.width), self.dtype, &self.device);
        if self.rows.is_empty() {
            self.rows = (0..self.layers).map(|_| Ok([empty()?, empty()?])).collect::<Result<_>>()?;
        } else {
            // One tensor at a time, so that little memory is held twice.
            for rows in self.rows.iter_mut().flatten() {
                let grown = empty()?;
                grown.slice_set(rows, 0, 0)?;
                *rows = grown;
            }
        }
        self.allocated = blocks;
        Ok(())
    }

    /// Copies whole blocks, from the first of each pair to the second.
    pub(super) fn copy(&mut self, pairs: &[(u32, u32)]) -> Result<()> {
        let last = pairs.iter().map(|(from, to)| *from.max(to) as usize + 1).max();
        self.allocate(last.unwrap_or(0))?;
        for rows in self.rows.iter().flatten() {
            for &(from, to) in pairs {
                let block = rows.narrow(0, from as usize * BLOCK_SIZE, BLOCK_SIZE)?.force_contiguous()?;
                rows.slice_set(&block, 0, to as usize * BLOCK_SIZE)?;
            }
        }
        Ok(())
    }

    /// Stores the keys and values of a step, `[tokens, width]` each. Returns all keys and values of the layer.
    pub(super) fn store(&self, layer: usize, to: &CacheRows, rows: [&Tensor; 2]) -> Result<&[Tensor; 2]> {
        let all = &self.rows[layer];
        for (all, rows) in all.iter().zip(rows) {
            let rows = rows.to_dtype(self.dtype)?.contiguous()?;
            for run in &to.0 {
                all.slice_set(&rows.narrow(0, run.token, run.count)?, 0, run.row)?;
            }
        }
        Ok(all)
    }
}
