//! The low-level API of a model, for callers with their own batching: text to tokens, a batch to rows. The functions of
//! [`operations`](crate::operations) turn inputs into sequences, and rows into answers.

use std::sync::Arc;

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::engine::BatchLayout;

use crate::error::Error;
use crate::execute::{
    BatchOutcome, BatchOutput, OnOutput, SecondLoad, SecondLoaded, ShadowCheck, UnresolvedSequence,
};
use crate::memory::Claim;
use crate::model::Model;
use crate::operations::{Input, Prompt, embed};
use crate::tokenize::{Token, TokenBytes, TokenSequence};

/// Batches.
impl Model {
    /// The engine output that the model's task needs.
    pub fn output_kind(&self) -> OutputKind {
        self.context().output_kind()
    }

    /// How the active placement lays out batches.
    pub fn batch_layout(&self) -> BatchLayout {
        self.serving().batch_layout()
    }

    /// Number of concurrent [`compute`](Model::compute) calls that keep the active placement busy. If it is above 1,
    /// further calls run beside them instead of waiting.
    pub fn concurrency(&self) -> usize {
        self.serving().concurrency()
    }

    /// Computes one batch under the guard. It is replayed on another placement if its placement fails, and split if
    /// memory runs out. Fails if a sequence can't be computed; [`compute_each`](Model::compute_each) returns the others.
    pub fn compute(&self, batch: Batch) -> Result<BatchOutput, Error> {
        self.serving().compute(&well_formed(batch)?)
    }

    /// Computes one batch like [`compute`](Model::compute), with a result per sequence: a sequence that fails or needs a
    /// second placement does not affect the others.
    pub fn compute_each(&self, batch: Batch) -> Result<BatchOutcome, Error> {
        self.serving().compute_each(&well_formed(batch)?, None)
    }

    /// Computes one batch like [`compute_each`](Model::compute_each). If no sequence fails, `on_output` receives the output
    /// on the thread that computed it, before this function returns, and [`BatchOutcome::delivered`] is set.
    pub fn compute_each_then(&self, batch: Batch, on_output: OnOutput) -> Result<BatchOutcome, Error> {
        self.serving().compute_each(&well_formed(batch)?, Some(on_output))
    }

    /// Resolves a sequence with a second placement, which may have to be proved and loaded first. The result is valid if
    /// both agree. If the first placement was wrong, it is quarantined, and the sequence is computed again.
    pub fn resolve(&self, sequence: &UnresolvedSequence) -> Result<BatchOutput, Error> {
        self.serving().resolve(sequence)
    }

    /// The placement to load before `sequence` can be resolved. `None` if one is loaded, or none is left. The model need
    /// not be held while it loads.
    pub fn second_to_load(&self, sequence: &UnresolvedSequence) -> Option<SecondLoad> {
        self.serving().second_to_load(sequence)
    }

    /// Keeps a loaded second placement, or marks it as unavailable.
    pub fn admit_second(&self, second: SecondLoaded) {
        self.serving().admit_second(second);
    }

    /// Checks a sample of `batch`, whose output is `output`, against the reference, and quarantines a placement that
    /// drifts. `None` if there is nothing to compare: the reference itself is active, or the placement no longer is.
    pub fn shadow(&self, batch: &Batch, output: &BatchOutput) -> Result<Option<ShadowCheck>, Error> {
        self.serving().shadow(batch, output)
    }

    /// Memory of the reference, if the next shadow check has to load it.
    pub fn reference_to_load(&self) -> Option<Claim> {
        self.serving().reference_to_load()
    }
}

/// Tokens.
impl Model {
    /// The sequence of each text, after the prompt.
    pub fn encode_texts<T: AsRef<str> + Sync>(
        &self,
        prompt: &Prompt,
        texts: &[T],
    ) -> Result<Vec<TokenSequence>, Error> {
        self.tokenize(texts, |model, text| embed::sequence(model, prompt, Input::Text(text.as_ref())))
    }

    /// The tokens of a text with their strings and offsets, without truncation.
    pub fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        Ok(self.context().tokenizer.tokens(text, special)?)
    }

    /// The text of token ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        Ok(self.context().tokenizer.decode(ids, skip_special)?)
    }

    /// The bytes that a generated token adds to a text, which need not be whole characters; none of a special token. `None`
    /// if they depend on other tokens.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        match self.context().tokenizer.token_bytes()?.get(id as usize)? {
            TokenBytes::Text(bytes) => Some(bytes.clone()),
            TokenBytes::Special(_) => Some(Vec::new()),
            TokenBytes::None => None,
        }
    }

    /// The string of a token in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.context().tokenizer.token(id)
    }
}

fn well_formed(batch: Batch) -> Result<Arc<Batch>, Error> {
    if batch.sequences.is_empty() || !batch.is_well_formed() {
        return Err(Error::Request("the batch is malformed".to_owned()));
    }
    Ok(Arc::new(batch))
}
