//! Reranking: documents sorted by relevance to a query.
//!
//! Cross-encoders and pair classifiers score each pair as one sequence. Late-interaction models compare token vectors: see
//! [`late_interaction`](super::late_interaction).

use sconce_core::card::{ModelCard, Task};
use sconce_core::head::Scoring;
use serde::Serialize;

use super::classify::label_names;
use super::context::{ModelContext, expect_task};
use super::metadata::OutputMetadata;
use super::output::SequenceOutput;
use super::scoring::activate;
use crate::error::Error;
use crate::tokenize::rerank_template::relevance_logit;
use crate::tokenize::{TokenSequence, TruncationStrategy};

/// Options of a reranking.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RerankOptions {
    /// Activation of raw scores; by default the model's.
    pub scoring: Option<Scoring>,
    /// Which text of a pair is truncated.
    pub truncation: TruncationStrategy,
    /// Maximum number of results.
    pub top: Option<usize>,
    /// Instruction, for models that take one.
    pub instruction: Option<String>,
    /// The label whose score ranks documents, for pair classifiers.
    pub label: Option<String>,
}

/// Documents in descending order of relevance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranking {
    /// The documents.
    pub ranked: Vec<RankedDocument>,
    /// Metadata, with texts in input order.
    #[serde(flatten)]
    pub metadata: OutputMetadata,
}

/// A document's score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankedDocument {
    /// Index of the document in the input.
    pub index: usize,
    /// Relevance to the query.
    pub score: f32,
}

/// Checks that the model reranks with these options. Returns its task: [`Task::Tokens`] means late interaction.
pub fn check(card: &ModelCard, options: &RerankOptions) -> Result<Task, Error> {
    let task = match &options.label {
        None => expect_task(card, "rerank", &[Task::Rerank, Task::Tokens])?,
        Some(label) => {
            let task = expect_task(card, "rerank by a label", &[Task::Classify])?;
            if !label_names(card).contains(label) {
                let known = label_names(card).join("`, `");
                return Err(Error::Request(format!("the labels are `{known}`; requested: `{label}`")));
            }
            task
        }
    };
    if options.instruction.is_some() && card.head.template.is_none() {
        return Err(Error::Request("this model takes no instruction; requested: `instruction`".to_owned()));
    }
    Ok(task)
}

/// The sequence of a query and a document, for cross-encoders.
pub fn sequence(
    model: ModelContext<'_>,
    query: &str,
    document: &str,
    options: &RerankOptions,
) -> Result<TokenSequence, Error> {
    let instruction = options.instruction.as_deref();
    Ok(model.tokenizer.pair(model.card, query, document, options.truncation, instruction)?)
}

/// The score of a cross-encoder's row.
pub fn score(card: &ModelCard, row: &[f32], options: &RerankOptions) -> f32 {
    let scoring = options.scoring.or(card.head.scoring.as_ref().map(|said| said.value));
    let raw = match row {
        [no, yes] if card.head.template.is_some() => &[relevance_logit(*no, *yes)],
        row => row,
    };
    let position = |label: &String| label_names(card).iter().position(|name| name == label);
    let index = options.label.as_ref().and_then(position).unwrap_or(0);
    activate(raw, scoring.unwrap_or(Scoring::Raw)).get(index).copied().unwrap_or(f32::NAN)
}

/// The scores of all documents, for cross-encoders.
pub fn scores(card: &ModelCard, outputs: &[SequenceOutput], options: &RerankOptions) -> Vec<f32> {
    outputs.iter().map(|output| score(card, output.values(), options)).collect()
}

/// Sorts documents by score in descending order. Equal scores keep the input order.
pub fn ranking(scores: &[f32], top: Option<usize>) -> Vec<RankedDocument> {
    let mut ranked: Vec<RankedDocument> =
        scores.iter().enumerate().map(|(index, &score)| RankedDocument { index, score }).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked.truncate(top.unwrap_or(usize::MAX));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_comes_first_and_equals_keep_their_order() {
        let order = |top| ranking(&[0.5, 0.9, 0.5, -1.0], top).iter().map(|r| r.index).collect::<Vec<_>>();
        assert_eq!(order(None), [1, 0, 2, 3]);
        assert_eq!(order(Some(2)), [1, 0]);
        assert_eq!(order(Some(0)), [] as [usize; 0]);
    }
}
