//! The load of a model's generations.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The load of a model's generations after their last step. Counters start with the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Time of the steps.
    pub step_time: Duration,
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

impl GenerationLoad {
    /// The load with what its counters gained since `earlier`. A model that was loaded again counts from 0.
    #[must_use]
    pub fn since(&self, earlier: &GenerationLoad) -> GenerationLoad {
        if self.steps < earlier.steps {
            return *self;
        }
        GenerationLoad {
            steps: self.steps.saturating_sub(earlier.steps),
            step_time: self.step_time.saturating_sub(earlier.step_time),
            prefill_tokens: self.prefill_tokens.saturating_sub(earlier.prefill_tokens),
            decode_tokens: self.decode_tokens.saturating_sub(earlier.decode_tokens),
            preemptions: self.preemptions.saturating_sub(earlier.preemptions),
            prefix_queries: self.prefix_queries.saturating_sub(earlier.prefix_queries),
            prefix_hits: self.prefix_hits.saturating_sub(earlier.prefix_hits),
            ..*self
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_model_that_was_loaded_again_are_new() {
        let earlier = GenerationLoad { steps: 5, decode_tokens: 7, running: 2, ..GenerationLoad::default() };
        let now = GenerationLoad { steps: 6, decode_tokens: 9, running: 1, ..earlier };
        let gained = GenerationLoad { steps: 1, decode_tokens: 2, running: 1, ..GenerationLoad::default() };
        assert_eq!(now.since(&earlier), gained);
        let again = GenerationLoad { steps: 1, decode_tokens: 2, ..GenerationLoad::default() };
        assert_eq!(again.since(&now), again);
    }
}
