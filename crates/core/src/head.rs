//! What becomes of token vectors, as data: layers before and after pooling, labels, and how scores are read.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::sourced::Sourced;

/// What tasks other than embedding need.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputHead {
    /// What is done to every token's vector before pooling, or instead of it.
    pub tokens: Option<Sourced<Vec<Step>>>,
    /// The names of the scores, in their order.
    pub labels: Option<Sourced<Vec<String>>>,
    /// How raw scores become those that are given out.
    pub scoring: Option<Sourced<Scoring>>,
    /// How queries differ from documents, where tokens are compared.
    pub sides: Option<Sourced<Sides>>,
    /// What a pair is put into, where it is not the tokenizer's own way of joining two texts.
    pub template: Option<Sourced<Template>>,
}

/// How raw scores become those that are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scoring {
    /// As they are.
    Raw,
    /// Each by itself between 0 and 1.
    Sigmoid,
    /// Together, so that they sum to 1.
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

/// How queries and documents are told apart where tokens are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides {
    /// What is put before a query.
    pub query: String,
    /// What is put before a document.
    pub document: String,
    /// The most tokens a query may have.
    pub query_length: Option<usize>,
    /// The most tokens a document may have.
    pub document_length: Option<usize>,
    /// How queries are filled up with the mask token.
    pub expansion: Option<Expansion>,
    /// Tokens of documents that are left out.
    pub skip: Vec<String>,
}

/// Queries filled up with the mask token, whose vectors stand for words that the query lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expansion {
    /// Tokens that a query has then.
    pub to: usize,
    /// Whether the other tokens see those that were added.
    pub attended: bool,
}

/// The words around a pair for a model that answers with a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Before everything.
    pub prefix: String,
    /// After everything.
    pub suffix: String,
    /// The instruction where the caller gives none.
    pub instruction: String,
    /// The word that stands for yes.
    pub yes: String,
    /// The word that stands for no.
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
    /// `log(1 + max(0, x))` of every number, taken this many times over.
    LogRelu(u8),
    /// The vector is made one long.
    Normalize,
}

/// A linear layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dense {
    /// Its folder in the model, as `2_Dense`; none where it lies among the model's own weights.
    pub folder: Option<String>,
    /// Its tensor: the first of these that is there.
    pub weight: Vec<String>,
    /// Its bias: the first of these that is there; none has no bias.
    pub bias: Vec<String>,
    /// Only these rows of the tensor, which has one for each of so many words.
    pub picked: Option<Picked>,
    /// Numbers in.
    pub input: usize,
    /// Numbers out.
    pub output: usize,
    /// What follows it.
    pub activation: DenseActivation,
}

/// Some rows of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picked {
    /// Rows of the whole table.
    pub of: usize,
    /// Those that are used.
    pub rows: Vec<u32>,
}

/// A layer norm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm {
    /// What its tensors' names begin with: the first of these that is there.
    pub name: Vec<String>,
    /// Whether it adds something at the end.
    pub bias: bool,
    /// What keeps it from dividing by zero.
    pub epsilon: f64,
}

/// What follows a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseActivation {
    /// Nothing.
    Identity,
    /// The hyperbolic tangent, which is sentence-transformers' default.
    Tanh,
    /// Negative numbers become zero.
    Relu,
    /// The exact GELU.
    Gelu,
    /// The GELU's approximation by tanh.
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

/// The width of a row of `width` after `steps`.
pub fn width_after(width: usize, steps: &[Step]) -> usize {
    steps.iter().fold(width, |width, step| match step {
        Step::Dense(dense) => dense.output,
        Step::Norm(_) | Step::LogRelu(_) | Step::Normalize => width,
    })
}
