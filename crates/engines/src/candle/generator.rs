//! Text generation with Candle, without cached keys and values: cache blocks hold token ids, and a step computes whole
//! sequences again. It is correct wherever the forward pass is, and the reference for engines with a KV cache. Its steps
//! take longer as sequences grow.

use candle_core::{Result, Tensor};
use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::EngineError;
use sconce_core::generator::{CacheLayout, Generator};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::device::with_autorelease;
use super::encoder::CandleEncoder;
use super::layers::ForwardPath;
use crate::errors;
use crate::step::{self, BLOCK_SIZE};

/// The output matrix of a decoder, and the tokens of its sequences.
pub(super) struct LogitsHead {
    /// `[hidden, vocabulary]`.
    matrix: Tensor,
    blocks: Mutex<Vec<[u32; BLOCK_SIZE]>>,
}

impl LogitsHead {
    pub(super) fn new(matrix: Tensor) -> LogitsHead {
        LogitsHead { matrix, blocks: Mutex::default() }
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<[u32; BLOCK_SIZE]>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the tokens of a step. Returns the whole sequences.
    fn whole_sequences(&self, step: &Batch) -> Batch {
        let mut blocks = self.blocks();
        let mut whole = Batch::new(OutputKind::Tokens);
        for (sequence, cached) in step.sequences.iter().zip(&step.cached) {
            let place =
                |position: usize| (cached.blocks[position / BLOCK_SIZE] as usize, position % BLOCK_SIZE);
            let ids = &step.ids[sequence.start..sequence.start + sequence.length];
            for (position, id) in (cached.length..).zip(ids) {
                let (block, token) = place(position);
                blocks[block][token] = *id;
            }
            let all = (0..cached.length + sequence.length).map(|position| {
                let (block, token) = place(position);
                blocks[block][token]
            });
            let all: Vec<u32> = all.collect();
            whole.push(&all, &vec![0; all.len()], 0);
        }
        whole
    }
}

impl CandleEncoder {
    fn logits(&self, head: &LogitsHead, step: &Batch) -> Result<Vec<f32>> {
        let whole = head.whole_sequences(step);
        let hidden = self.transformer.hidden(&whole)?;
        let ends = whole.sequences.iter().map(|sequence| sequence.start + sequence.length);
        let rows = ends.zip(&step.cached).flat_map(|(end, cached)| end - cached.logits..end);
        let rows: Vec<u32> = rows.map(|row| row as u32).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
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
        let values = values.map_err(errors::to_engine_error)?;
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
