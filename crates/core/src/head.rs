//! Output heads as data: layers before and after pooling, labels, and score activations.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sourced::Sourced;

/// The output head of tasks other than embedding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputHead {
    /// Layers for every token vector, before pooling or instead of it.
    pub tokens: Option<Sourced<Vec<Step>>>,
    /// Labels, in the order of the scores.
    pub labels: Option<Sourced<Vec<String>>>,
    /// Activation of the scores.
    pub scoring: Option<Sourced<Scoring>>,
    /// Query and document encoding of multi-vector models.
    pub late_interaction: Option<Sourced<LateInteraction>>,
    /// Prompt template of a pair; without one, the tokenizer joins the two texts.
    pub template: Option<Sourced<Template>>,
}

/// Activation of scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scoring {
    /// Identity: raw logits.
    Raw,
    /// Each score by itself, between 0 and 1.
    Sigmoid,
    /// Over all labels, summing to 1.
    Softmax,
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Scoring::Raw => "raw",
            Scoring::Sigmoid => "sigmoid",
            Scoring::Softmax => "softmax",
        })
    }
}

/// How a multi-vector model encodes queries and documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateInteraction {
    /// Prefix of queries.
    pub query: String,
    /// Prefix of documents.
    pub document: String,
    /// Maximum query length in tokens.
    pub query_length: Option<usize>,
    /// Maximum document length in tokens.
    pub document_length: Option<usize>,
    /// Query expansion with the mask token.
    pub expansion: Option<Expansion>,
    /// Document tokens whose vectors are dropped.
    pub skip: Vec<String>,
}

/// Query expansion: queries are padded with mask tokens, whose vectors take part in MaxSim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expansion {
    /// Padded query length.
    pub to: usize,
    /// Whether other tokens attend to the mask tokens.
    pub attended: bool,
}

/// Prompt template of a reranker that answers with a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Text before the pair.
    pub prefix: String,
    /// Text after the pair.
    pub suffix: String,
    /// Default instruction.
    pub instruction: String,
    /// The positive answer token.
    pub yes: String,
    /// The negative answer token.
    pub no: String,
}

/// A layer before or after pooling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A linear layer with an activation.
    Dense(Dense),
    /// A layer norm.
    Norm(LayerNorm),
    /// `log(1 + relu(x))`, applied this many times.
    LogRelu(u8),
    /// L2 normalization.
    Normalize,
}

/// A linear layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    /// Module folder, such as `2_Dense`; none if the tensors are in the model's own weights.
    pub folder: Option<String>,
    /// Names of the weight tensor; the first that exists is read.
    pub weight: Vec<String>,
    /// Names of the bias tensor; the first that exists is read. Empty means no bias.
    pub bias: Vec<String>,
    /// Selected rows of the weight tensor.
    pub selected_rows: Option<RowSelection>,
    /// Input features.
    pub input: usize,
    /// Output features.
    pub output: usize,
    /// Activation.
    pub activation: DenseActivation,
}

/// A selection of rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSelection {
    /// Rows of the table.
    pub of: usize,
    /// Selected rows.
    pub rows: Vec<u32>,
}

/// A layer norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// Name prefixes of the tensors; the first that exists is read.
    pub name: Vec<String>,
    /// Whether the norm has a bias.
    pub bias: bool,
    /// Epsilon.
    pub epsilon: f64,
}

/// Activation of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseActivation {
    /// Identity.
    Identity,
    /// Hyperbolic tangent, the default of sentence-transformers.
    Tanh,
    /// ReLU.
    Relu,
    /// GELU with the exact error function.
    Gelu,
    /// GELU with the tanh approximation.
    GeluTanh,
}

impl fmt::Display for DenseActivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DenseActivation::Identity => "identity",
            DenseActivation::Tanh => "tanh",
            DenseActivation::Relu => "relu",
            DenseActivation::Gelu => "gelu",
            DenseActivation::GeluTanh => "gelu_tanh",
        })
    }
}

/// Columns of a row of `width` columns after `steps`.
pub fn width_after(width: usize, steps: &[Step]) -> usize {
    steps.iter().fold(width, |width, step| match step {
        Step::Dense(dense) => dense.output,
        Step::Norm(_) | Step::LogRelu(_) | Step::Normalize => width,
    })
}
