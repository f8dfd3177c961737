//! Text generation with Candle, without cached keys and values: cache blocks hold token ids, and a step computes whole
//! sequences again. It is correct wherever the forward pass is, and the reference for engines with a KV cache. Its steps
//! take longer as sequences grow.

use std::ops::Range;

use candle_core::{Result, Tensor};
use sconce_core::batch::{Batch, CachedSequence, Output, OutputKind, Rows, Sequence};
use sconce_core::engine::EngineError;
use sconce_core::generator::{CacheLayout, Generator};

use super::device::with_autorelease;
use super::encoder::CandleEncoder;
use super::layers::ForwardPath;
use super::logits_head::LogitsHead;
use crate::errors;
use crate::step::{self, BLOCK_SIZE};

/// Tokens of whole sequences after which a forward pass ends.
const GROUP_TOKENS: usize = 2048;

impl CandleEncoder {
    fn logits(&self, head: &LogitsHead, step: &Batch) -> Result<Vec<f32>> {
        let whole = head.whole_sequences(step);
        let mut logits = Vec::new();
        let mut group = 0..0;
        for index in 0..step.cached.len() {
            group.end = index + 1;
            let tokens: usize = whole.sequences[group.clone()].iter().map(|sequence| sequence.length).sum();
            if tokens >= GROUP_TOKENS || group.end == step.cached.len() {
                logits.extend(self.logits_of(head, &whole, &step.cached, group.clone())?);
                group.start = group.end;
            }
        }
        Ok(logits)
    }

    /// The requested logits of the sequences in `group`.
    fn logits_of(
        &self,
        head: &LogitsHead,
        whole: &Batch,
        cached: &[CachedSequence],
        group: Range<usize>,
    ) -> Result<Vec<f32>> {
        let mut batch = Batch::new(OutputKind::Tokens);
        let mut rows = Vec::new();
        for index in group.filter(|&index| cached[index].logits > 0) {
            let Sequence { start, length, .. } = whole.sequences[index];
            batch.push(&whole.ids[start..start + length], &whole.types[start..start + length], 0);
            let end = batch.tokens() as u32;
            rows.extend(end - cached[index].logits as u32..end);
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let hidden = self.transformer.hidden(&batch)?;
        let rows = Tensor::new(rows, hidden.device())?;
        let hidden = hidden.contiguous()?.index_select(&rows, 0)?.to_dtype(head.matrix.dtype())?;
        hidden.matmul(&head.matrix)?.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()
    }

    fn logits_head(&self) -> std::result::Result<&LogitsHead, EngineError> {
        let absent = || EngineError::Malformed("the model was loaded without its output matrix".to_owned());
        self.logits.as_ref().ok_or_else(absent)
    }
}

impl Generator for CandleEncoder {
    fn cache_layout(&self) -> CacheLayout {
        CacheLayout { block_size: BLOCK_SIZE, block_bytes: size_of::<[u32; BLOCK_SIZE]>() }
    }

    fn reserve(&self, blocks: usize) -> std::result::Result<(), EngineError> {
        let mut held = self.logits_head()?.blocks();
        held.clear();
        let reserved = held.try_reserve_exact(blocks);
        reserved.map_err(|error| EngineError::OutOfMemory(Box::new(error)))?;
        held.resize(blocks, [0; BLOCK_SIZE]);
        Ok(())
    }

    fn step(&self, batch: &Batch) -> std::result::Result<Output, EngineError> {
        let head = self.logits_head()?;
        let description = self.transformer.description();
        step::check(description, batch, head.blocks().len())?;
        let values = match self.path {
            ForwardPath::Fused => self.threads.all_threads(|| self.logits(head, batch)),
            ForwardPath::Portable => with_autorelease(|| self.logits(head, batch)),
        };
        let mut values = values.map_err(errors::to_engine_error)?;
        step::finish_logits(description, &head.bias, &mut values);
        Ok(Output::Logits(Rows { width: description.vocabulary, values, norms: Vec::new() }))
    }

    fn copy(&self, pairs: &[(u32, u32)]) -> std::result::Result<(), EngineError> {
        let mut blocks = self.logits_head()?.blocks();
        for &(from, to) in pairs {
            blocks[to as usize] = blocks[from as usize];
        }
        Ok(())
    }
}
