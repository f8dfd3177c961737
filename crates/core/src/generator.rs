//! The interface of loaded decoders that generate text.

use crate::batch::{Batch, Output};
use crate::engine_error::EngineError;

/// A loaded decoder with a paged KV cache. The engine owns the cache memory; the caller owns the block accounting. One
/// thread at a time calls it.
pub trait Generator: Send + Sync {
    /// Sizes of the KV cache.
    fn cache_layout(&self) -> CacheLayout;

    /// Allocates cache memory for `blocks` blocks, and drops the content of the cache.
    fn reserve(&self, blocks: usize) -> Result<(), EngineError>;

    /// Computes the tokens of a batch, stores their keys and values in the blocks of each sequence, and returns the
    /// requested logits.
    fn step(&self, batch: &Batch) -> Result<Output, EngineError>;

    /// Copies whole blocks, from the first of each pair to the second.
    fn copy(&self, pairs: &[(u32, u32)]) -> Result<(), EngineError>;
}

/// Sizes of a paged KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Tokens per block.
    pub block_size: usize,
    /// Bytes per block, over all layers.
    pub block_bytes: usize,
    /// Whether prompt tokens and generated tokens are computed by different kernels, so that their keys and values differ in
    /// the last bits.
    pub separates_prompts: bool,
}
