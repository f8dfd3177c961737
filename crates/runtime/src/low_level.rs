//! The low-level API of a model, for callers with their own batching: text to tokens, a batch to rows, rows to answers.

use std::sync::Arc;

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::Task;
use sconce_core::engine::Cost;

use crate::error::Error;
use crate::execute::{BatchOutcome, BatchOutput, SecondLoad, SecondLoaded, ShadowCheck, UnresolvedSequence};
use crate::memory::Claim;
use crate::model::Model;
use crate::operations::chunk::{self, Chunk};
use crate::operations::classify::{self, ClassifyOptions, LabelScore};
use crate::operations::embed::{self, EmbedOptions};
use crate::operations::late_interaction::{self, Matrix};
use crate::operations::rerank::{self, RerankOptions};
use crate::operations::{Input, Prompt, expect_task};
use crate::tokenize::{Token, TokenSequence, TruncationStrategy};

/// Batches.
impl Model {
    /// The engine output that the model's task needs.
    pub fn output_kind(&self) -> OutputKind {
        self.context().output_kind()
    }

    /// Batch cost of the active placement.
    pub fn cost(&self) -> Cost {
        self.serving().cost()
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
        self.serving().compute_each(&well_formed(batch)?)
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

    /// The sequence of token ids, truncated to `max_length`.
    pub fn encode_ids(&self, ids: &[u32]) -> Result<TokenSequence, Error> {
        embed::sequence(self.context(), &Prompt::NONE, Input::Ids(ids))
    }

    /// The sequence of each text pair.
    pub fn encode_pairs<T: AsRef<str> + Sync>(
        &self,
        pairs: &[(T, T)],
        truncation: TruncationStrategy,
    ) -> Result<Vec<TokenSequence>, Error> {
        self.tokenize(pairs, |model, (first, second)| {
            classify::pair_sequence(model, first.as_ref(), second.as_ref(), truncation)
        })
    }

    /// The sequence of the query with each document, for cross-encoders.
    pub fn encode_ranking<T: AsRef<str> + Sync>(
        &self,
        query: &str,
        documents: &[T],
        options: &RerankOptions,
    ) -> Result<Vec<TokenSequence>, Error> {
        self.tokenize(documents, |model, document| rerank::sequence(model, query, document.as_ref(), options))
    }

    /// The sequence of each document, for late-interaction models.
    pub fn encode_documents<T: AsRef<str> + Sync>(
        &self,
        documents: &[T],
    ) -> Result<Vec<TokenSequence>, Error> {
        self.tokenize(documents, |model, text| late_interaction::document_sequence(model, text.as_ref()))
    }

    /// The sequence of each query, for late-interaction models.
    pub fn encode_queries<T: AsRef<str> + Sync>(&self, queries: &[T]) -> Result<Vec<TokenSequence>, Error> {
        self.tokenize(queries, |model, text| late_interaction::query_sequence(model, text.as_ref()))
    }

    /// Splits a text into chunks that fit into one sequence after `prompt`.
    pub fn chunks(&self, prompt: &Prompt, text: &str) -> Result<Vec<Chunk>, Error> {
        chunk::chunks(self.context(), prompt, text)
    }

    /// The tokens of a text with their strings and offsets, without truncation.
    pub fn tokens(&self, text: &str, special: bool) -> Result<Vec<Token>, Error> {
        Ok(self.context().tokenizer.tokens(text, special)?)
    }

    /// The text of token ids.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        Ok(self.context().tokenizer.decode(ids, skip_special)?)
    }

    /// The string of a token in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.context().tokenizer.token(id)
    }
}

/// Checks and answers.
impl Model {
    /// The task of the model, if it is one of `tasks`.
    pub fn expect_task(&self, operation: &'static str, tasks: &[Task]) -> Result<Task, Error> {
        expect_task(self.card(), operation, tasks)
    }

    /// Checks that the model computes embeddings with these options.
    pub fn check_embed(&self, options: &EmbedOptions) -> Result<(), Error> {
        embed::check(self.card(), options)
    }

    /// Checks that the model reranks with these options, and returns its task.
    pub fn check_rerank(&self, options: &RerankOptions) -> Result<Task, Error> {
        rerank::check(self.card(), options)
    }

    /// The vector of a row.
    pub fn vector(&self, row: &[f32], options: &EmbedOptions) -> Vec<f32> {
        embed::vector(self.card(), row, None, options)
    }

    /// The score of a cross-encoder's row.
    pub fn relevance(&self, row: &[f32], options: &RerankOptions) -> f32 {
        rerank::score(self.card(), row, options)
    }

    /// The labels of a classifier's row, in descending order of score.
    pub fn labels(&self, row: &[f32], options: &ClassifyOptions) -> Vec<LabelScore> {
        classify::labels(self.card(), row, options)
    }

    /// The token vectors of a query.
    pub fn query_matrix(&self, rows: &[f32]) -> Matrix {
        late_interaction::query_matrix(self.card(), rows)
    }

    /// The token vectors of a document, without tokens of the model's skip list.
    pub fn document_matrix(&self, sequence: &TokenSequence, rows: &[f32]) -> Matrix {
        late_interaction::document_matrix(self.context(), sequence, rows)
    }
}

fn well_formed(batch: Batch) -> Result<Arc<Batch>, Error> {
    if batch.sequences.is_empty() || !batch.is_well_formed() {
        return Err(Error::Request("the batch is malformed".to_owned()));
    }
    Ok(Arc::new(batch))
}
