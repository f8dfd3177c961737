//! The load of a model's generations.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

/// The load of a model's generations after their last step. Counters start with the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GenerationLoad {
    /// Sequences in the running batch.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Blocks of the KV cache.
    pub blocks: usize,
    /// Blocks that running sequences hold.
    pub used_blocks: usize,
    /// Steps.
    pub steps: u64,
    /// Computed tokens of prompts.
    pub prefill_tokens: u64,
    /// Computed tokens of outputs.
    pub decode_tokens: u64,
    /// Sequences that lost their blocks to others.
    pub preemptions: u64,
    /// Tokens of prompts that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens of prompts that the prefix cache had.
    pub prefix_hits: u64,
}

/// The load that the step loop publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedLoad(Arc<Mutex<GenerationLoad>>);

impl PublishedLoad {
    pub(crate) fn get(&self) -> GenerationLoad {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, load: GenerationLoad) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = load;
    }
}
