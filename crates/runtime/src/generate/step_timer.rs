//! Times steps of a generator without scheduling, sampling or text, for benchmarks.

use std::time::{Duration, Instant};

use sconce_core::batch::{Batch, CachedSequence, OutputKind};
use sconce_core::engine::EngineError;
use sconce_core::generator::Generator;

/// Token ids are below this: every vocabulary has them.
const IDS: usize = 100;

/// Times steps of a generator. Its KV cache holds a fixed number of sequences.
pub struct StepTimer<'a> {
    generator: &'a dyn Generator,
    /// Blocks of a sequence.
    blocks: usize,
}

impl<'a> StepTimer<'a> {
    /// Allocates cache memory for `sequences` sequences of `context` tokens.
    pub fn new(
        generator: &'a dyn Generator,
        sequences: usize,
        context: usize,
    ) -> Result<StepTimer<'a>, EngineError> {
        let blocks = context.div_ceil(generator.cache_layout().block_size);
        generator.reserve(sequences * blocks)?;
        Ok(StepTimer { generator, blocks })
    }

    /// Bytes of cache memory that [`StepTimer::new`] allocates.
    pub fn cache_bytes(generator: &dyn Generator, sequences: usize, context: usize) -> u64 {
        let layout = generator.cache_layout();
        (sequences * context.div_ceil(layout.block_size) * layout.block_bytes) as u64
    }

    /// The time of a prompt.
    pub fn prompt(&self, tokens: usize) -> Result<Duration, EngineError> {
        let started = Instant::now();
        self.step(1, 0, tokens)?;
        Ok(started.elapsed())
    }

    /// The time of `steps` steps that compute one token of each sequence, after `cached` tokens.
    pub fn decode(&self, sequences: usize, cached: usize, steps: usize) -> Result<Duration, EngineError> {
        let started = Instant::now();
        for done in 0..steps {
            self.step(sequences, cached + done, 1)?;
        }
        Ok(started.elapsed())
    }

    /// Computes the next `count` tokens of each sequence, and the logits of the last.
    fn step(&self, sequences: usize, cached: usize, count: usize) -> Result<(), EngineError> {
        let mut batch = Batch::new(OutputKind::Logits);
        for sequence in 0..sequences {
            let id = |at: usize| (((cached + at) * 7919 + sequence * 31 + 11) % IDS) as u32;
            let ids: Vec<u32> = (0..count).map(id).collect();
            let blocks = (sequence * self.blocks..(sequence + 1) * self.blocks).map(|block| block as u32);
            let prompt = if count > 1 { cached + count } else { cached };
            let cached = CachedSequence { length: cached, blocks: blocks.collect(), logits: 1, prompt };
            batch.push_cached(&ids, cached);
        }
        self.generator.step(&batch).map(drop)
    }
}
