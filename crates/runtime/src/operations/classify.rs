//! Classification: label scores of texts and text pairs.

use sconce_core::card::{ModelCard, Task};
use sconce_core::head::Scoring;
use serde::Serialize;

use super::context::{Input, ModelContext, expect_task};
use super::metadata::OutputMetadata;
use super::output::SequenceOutput;
use super::prompt::Prompt;
use super::scoring::activate;
use crate::error::Error;
use crate::tokenize::{TokenSequence, TruncationStrategy};

/// JSON size of a label with its score in bytes, at least.
const LABEL_BYTES: usize = 40;

/// Options of a classification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassifyOptions {
    /// Activation of raw scores; by default the model's.
    pub scoring: Option<Scoring>,
    /// Which text of a pair is truncated.
    pub truncation: TruncationStrategy,
}

/// Label scores of each text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Classifications {
    /// For each text its labels, in descending order of score.
    pub texts: Vec<Vec<LabelScore>>,
    /// Metadata.
    #[serde(flatten)]
    pub metadata: OutputMetadata,
}

/// A label's score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelScore {
    /// The label.
    pub label: String,
    /// Its score: a probability, unless raw scores were requested.
    pub score: f32,
}

/// Checks that the model is a classifier.
pub fn check(card: &ModelCard) -> Result<(), Error> {
    expect_task(card, "classify", &[Task::Classify]).map(|_| ())
}

/// The sequence of a text.
pub fn sequence(model: ModelContext<'_>, text: &str) -> Result<TokenSequence, Error> {
    model.encode(&Prompt::NONE, Input::Text(text))
}

/// The sequence of a text pair.
pub fn pair_sequence(
    model: ModelContext<'_>,
    first: &str,
    second: &str,
    truncation: TruncationStrategy,
) -> Result<TokenSequence, Error> {
    Ok(model.tokenizer.encode_pair(first, second, truncation)?)
}

/// The labels of a row, in descending order of score.
pub fn labels(card: &ModelCard, row: &[f32], options: &ClassifyOptions) -> Vec<LabelScore> {
    let scoring = options.scoring.or(card.head.scoring.as_ref().map(|said| said.value));
    let scores = activate(row, scoring.unwrap_or(Scoring::Softmax));
    let labels = label_names(card).iter().zip(scores);
    let mut labels: Vec<_> =
        labels.map(|(label, score)| LabelScore { label: label.clone(), score }).collect();
    labels.sort_by(|a, b| b.score.total_cmp(&a.score));
    labels
}

/// The labels of all texts.
pub fn classifications(
    card: &ModelCard,
    outputs: &[SequenceOutput],
    options: &ClassifyOptions,
) -> Vec<Vec<LabelScore>> {
    outputs.iter().map(|output| labels(card, output.values(), options)).collect()
}

/// Estimated JSON size of the labels of `texts` texts, in bytes.
pub fn json_bytes(card: &ModelCard, texts: usize) -> usize {
    LABEL_BYTES * texts * card.width()
}

/// Label names in the order of scores.
pub(super) fn label_names(card: &ModelCard) -> &[String] {
    card.head.labels.as_ref().map_or(&[], |said| &said.value)
}
