//! Sparse embeddings (SPLADE): weights of vocabulary tokens, most of them zero.

use sconce_core::card::{ModelCard, Task};
use serde::Serialize;

use super::context::{Input, ModelContext, expect_task};
use super::embed::EmbedOptions;
use super::metadata::OutputMetadata;
use super::output::SequenceOutput;
use super::prompt::Prompt;
pub use super::token_weight::{TokenWeight, nonzero_weights, sparse_dot};
use crate::error::Error;
use crate::tokenize::TokenSequence;

/// Token weights of each text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SparseEmbeddings {
    /// For each text its nonzero weights, sorted by token id.
    pub texts: Vec<Vec<TokenWeight>>,
    /// Metadata.
    #[serde(flatten)]
    pub metadata: OutputMetadata,
}

/// Checks that the model computes sparse embeddings with these options.
pub fn check(card: &ModelCard, options: &EmbedOptions) -> Result<(), Error> {
    expect_task(card, "embed_sparse", &[Task::Sparse])?;
    if let Some(dimensions) = options.dimensions {
        return Err(Error::Request(format!(
            "sparse embeddings can't be truncated; requested `dimensions`: {dimensions}"
        )));
    }
    Ok(())
}

/// The sequence of an input.
pub fn sequence(model: ModelContext<'_>, prompt: &Prompt, input: Input<'_>) -> Result<TokenSequence, Error> {
    model.encode(prompt, input)
}

/// The weights of all inputs.
pub fn weights(outputs: Vec<SequenceOutput>) -> Vec<Vec<TokenWeight>> {
    outputs.into_iter().map(SequenceOutput::into_weights).collect()
}
