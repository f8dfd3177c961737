//! Similarity of one text to others: cosine of vectors, dot product of sparse weights, or MaxSim of token vectors.

use sconce_core::card::{ModelCard, Task};
use serde::Serialize;

use super::context::{Input, ModelContext, expect_task};
use super::late_interaction;
use super::metadata::OutputMetadata;
use super::output::SequenceOutput;
use super::prompt::Prompt;
use super::sparse;
use super::token_weight::sparse_dot;
use crate::error::Error;
use crate::tokenize::TokenSequence;

/// Similarity of one text to others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Similarities {
    /// One score for each of the other texts.
    pub scores: Vec<f32>,
    /// Metadata, with the compared text first; last for late-interaction models.
    #[serde(flatten)]
    pub metadata: OutputMetadata,
}

/// Prompts of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimilarityOptions {
    /// Prompt of the compared text.
    pub prompt: Prompt,
    /// Prompt of the other texts.
    pub other_prompt: Prompt,
}

/// Checks that the model compares texts with these options. Returns its task.
pub fn check(card: &ModelCard, options: &SimilarityOptions) -> Result<Task, Error> {
    let task = expect_task(card, "similarity", &[Task::Embed, Task::Sparse, Task::Tokens])?;
    if task == Task::Tokens && *options != SimilarityOptions::default() {
        return Err(late_interaction::no_prompts());
    }
    Ok(task)
}

/// The sequence of the compared text, or of one of the others if `is_other`.
pub fn sequence(
    model: ModelContext<'_>,
    options: &SimilarityOptions,
    text: &str,
    is_other: bool,
) -> Result<TokenSequence, Error> {
    match (model.card.task.value, is_other) {
        (Task::Tokens, false) => late_interaction::query_sequence(model, text),
        (Task::Tokens, true) => late_interaction::document_sequence(model, text),
        (_, false) => model.encode(&options.prompt, Input::Text(text)),
        (_, true) => model.encode(&options.other_prompt, Input::Text(text)),
    }
}

/// The score of each text after the first, which is the compared one.
pub fn scores(
    model: ModelContext<'_>,
    sequences: &[TokenSequence],
    outputs: Vec<SequenceOutput>,
) -> Vec<f32> {
    match model.card.task.value {
        Task::Tokens => late_interaction::scores(model, sequences, &outputs),
        Task::Sparse => {
            let weights = sparse::weights(outputs);
            let [first, others @ ..] = weights.as_slice() else { return Vec::new() };
            others.iter().map(|other| sparse_dot(first, other)).collect()
        }
        Task::Embed | Task::Rerank | Task::Classify | Task::Generate => {
            let [first, others @ ..] = outputs.as_slice() else { return Vec::new() };
            others.iter().map(|other| cosine(first.values(), other.values())).collect()
        }
    }
}

/// Cosine similarity of two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cosine_does_not_depend_on_lengths() {
        for (a, b, expected) in [
            ([3.0, 4.0], [30.0, 40.0], 1.0),
            ([3.0, 4.0], [-0.3, -0.4], -1.0),
            ([3.0, 4.0], [4.0, -3.0], 0.0),
            ([3.0, 4.0], [2.0, 0.0], 0.6),
            ([0.5, 0.0], [3.0, 4.0], 0.6),
        ] {
            let cosine = cosine(&a, &b);
            assert!((cosine - expected).abs() < 1e-6, "{a:?} and {b:?}: {cosine}");
        }
    }
}
