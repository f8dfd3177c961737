//! Text generation with Candle: steps with a KV cache on the device.

use candle_core::{Result, Tensor};
use sconce_core::batch::{Batch, Output, Rows};
use sconce_core::engine::EngineError;
use sconce_core::generator::{CacheLayout, Generator};

use super::device::with_autorelease;
use super::encoder::CandleEncoder;
use super::kv_cache::KvCache;
use super::layers::ForwardPath;
use super::logits_head::LogitsHead;
use crate::errors;
use crate::step::{self, BLOCK_SIZE};

impl CandleEncoder {
    /// The requested logits of a step.
    fn logits(&self, head: &LogitsHead, cache: &mut KvCache, batch: &Batch) -> Result<Vec<f32>> {
        cache.allocate_for(batch)?;
        let hidden = self.transformer.hidden(batch, Some(cache))?;
        let rows = batch.sequences.iter().zip(&batch.cached).flat_map(|(sequence, cached)| {
            let end = (sequence.start + sequence.length) as u32;
            end - cached.logits as u32..end
        });
        let rows: Vec<u32> = rows.collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let rows = Tensor::new(rows, hidden.device())?;
        head.matrix.product(&hidden.contiguous()?.index_select(&rows, 0)?)?.flatten_all()?.to_vec1()
    }

    fn logits_head(&self) -> std::result::Result<&LogitsHead, EngineError> {
        let absent = || EngineError::Malformed("the model was loaded without its output matrix".to_owned());
        self.logits.as_ref().ok_or_else(absent)
    }
}

impl Generator for CandleEncoder {
    fn cache_layout(&self) -> CacheLayout {
        let block_bytes = self.logits_head().map_or(0, |head| head.cache().block_bytes());
        CacheLayout { block_size: BLOCK_SIZE, block_bytes, separates_prompts: false }
    }

    fn reserve(&self, blocks: usize) -> std::result::Result<(), EngineError> {
        let reserved = self.logits_head()?.cache().reserve(blocks);
        let failed = || EngineError::OutOfMemory(format!("{blocks} blocks of the KV cache").into());
        if reserved { Ok(()) } else { Err(failed()) }
    }

    fn step(&self, batch: &Batch) -> std::result::Result<Output, EngineError> {
        let head = self.logits_head()?;
        let description = self.transformer.description();
        let mut cache = head.cache();
        step::check(description, batch, cache.blocks())?;
        let cache = &mut *cache;
        let values = match self.path {
            ForwardPath::Fused => self.threads.all_threads(|_| self.logits(head, cache, batch)),
            ForwardPath::Portable => with_autorelease(|| self.logits(head, cache, batch)),
        };
        let mut values = values.map_err(errors::to_engine_error)?;
        step::finish_logits(description, &head.bias, &mut values);
        Ok(Output::Logits(Rows { width: description.vocabulary, values, norms: Vec::new() }))
    }

    fn copy(&self, pairs: &[(u32, u32)]) -> std::result::Result<(), EngineError> {
        let mut cache = self.logits_head()?.cache();
        with_autorelease(|| cache.copy(pairs)).map_err(errors::to_engine_error)
    }
}

#[cfg(test)]
mod tests;
