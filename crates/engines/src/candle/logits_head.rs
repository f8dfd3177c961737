//! What Candle needs to generate: the output matrix, and the KV cache.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::kv_cache::KvCache;
use super::matrix::Matrix;

/// The output matrix of a decoder, and its KV cache.
pub(super) struct LogitsHead {
    /// From the last hidden state to logits.
    pub(super) matrix: Matrix,
    /// Its bias; empty if there is none.
    pub(super) bias: Vec<f32>,
    cache: Mutex<KvCache>,
}

impl LogitsHead {
    pub(super) fn new(matrix: Matrix, bias: Vec<f32>, cache: KvCache) -> LogitsHead {
        LogitsHead { matrix, bias, cache: Mutex::new(cache) }
    }

    pub(super) fn cache(&self) -> MutexGuard<'_, KvCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
