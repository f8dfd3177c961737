//! What a model says of itself, each fact with the file or flag that said it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::device::UnknownName;
use crate::head::{OutputHead, Step, width_after};
use crate::placement::Dtype;
use crate::sourced::Sourced;

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Text in, one vector out.
    Embed,
    /// A query and a document in, one score out.
    Rerank,
    /// A text or a pair of texts in, a score for each label out.
    Classify,
    /// Text in, a weight for each word of the vocabulary out, most of them zero.
    Sparse,
    /// Text in, one vector for each token out, compared by their best matches.
    Tokens,
}

impl Task {
    /// All of them.
    pub const ALL: [Task; 5] = [Task::Embed, Task::Rerank, Task::Classify, Task::Sparse, Task::Tokens];

    /// The name in `--task`.
    pub fn name(self) -> &'static str {
        match self {
            Task::Embed => "embed",
            Task::Rerank => "rerank",
            Task::Classify => "classify",
            Task::Sparse => "sparse",
            Task::Tokens => "tokens",
        }
    }

    /// What a model for it does, as the rest of a sentence that begins with the model.
    pub fn does(self) -> &'static str {
        match self {
            Task::Embed => "turns a text into one vector",
            Task::Rerank => "scores a document against a query",
            Task::Classify => "scores labels for a text or a pair of texts",
            Task::Sparse => "turns a text into weights of words",
            Task::Tokens => "turns a text into one vector for each token",
        }
    }

    /// Whether its answer is one row of scores a text: numbers without a length of their own.
    pub fn scores(self) -> bool {
        match self {
            Task::Rerank | Task::Classify => true,
            Task::Embed | Task::Sparse | Task::Tokens => false,
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Task {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        Task::ALL.into_iter().find(|task| task.name() == text).ok_or_else(|| UnknownName {
            what: "task",
            name: text.to_owned(),
            known: "embed, rerank, classify, sparse, tokens",
        })
    }
}

/// What a model says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The name it was opened by.
    pub name: String,
    /// Its family: `bert`, `mpnet`, ….
    pub architecture: Sourced<String>,
    /// What it is for.
    pub task: Sourced<Task>,
    /// How large its parts are.
    pub sizes: Sourced<Sizes>,
    /// Its whole `config.json`, for the facts that only its family knows.
    pub config: Value,
    /// The most tokens a text may have, special tokens included.
    pub max_length: Sourced<usize>,
    /// How token vectors become one vector.
    pub pooling: Sourced<Pooling>,
    /// What is done to that vector afterwards, in order.
    pub steps: Sourced<Vec<Step>>,
    /// What tasks other than embedding need beside those.
    pub head: OutputHead,
    /// Texts put before a text, by name.
    pub prompts: Sourced<BTreeMap<String, String>>,
    /// The prompt to use where the caller names none.
    pub default_prompt: Option<Sourced<String>>,
    /// The lengths that vectors may be cut to, where the model was trained for that.
    pub dimensions: Option<Sourced<Dimensions>>,
    /// The sets of weight files.
    pub weights: Vec<Weights>,
}

/// How large the parts of a transformer are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Layers.
    pub layers: usize,
    /// Numbers a token.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Numbers a token inside the feed-forward part.
    pub intermediate: usize,
    /// Token ids known.
    pub vocabulary: usize,
    /// Rows of the position table.
    pub positions: usize,
}

/// How the vectors of a text's tokens become one: the modes' results, one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// The modes; nearly always one.
    pub modes: Vec<PoolingMode>,
    /// Whether the tokens of a prompt count.
    pub include_prompt: bool,
}

/// One way to make one vector of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolingMode {
    /// The first token's.
    Cls,
    /// The largest value in each place.
    Max,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the count.
    MeanSqrtLen,
    /// The mean with weights 1, 2, 3, ….
    WeightedMean,
    /// The last token's.
    LastToken,
}

impl PoolingMode {
    /// All modes, in the order in which sentence-transformers joins their results.
    pub const ALL: [PoolingMode; 6] = [
        PoolingMode::Cls,
        PoolingMode::Max,
        PoolingMode::Mean,
        PoolingMode::MeanSqrtLen,
        PoolingMode::WeightedMean,
        PoolingMode::LastToken,
    ];

    /// The name in `--pooling`.
    pub fn name(self) -> &'static str {
        match self {
            PoolingMode::Cls => "cls",
            PoolingMode::Max => "max",
            PoolingMode::Mean => "mean",
            PoolingMode::MeanSqrtLen => "mean_sqrt_len",
            PoolingMode::WeightedMean => "weighted_mean",
            PoolingMode::LastToken => "last_token",
        }
    }

    /// The name in the `pooling_mode_…` keys of a sentence-transformers pooling file.
    pub fn key(self) -> &'static str {
        match self {
            PoolingMode::Cls => "pooling_mode_cls_token",
            PoolingMode::Max => "pooling_mode_max_tokens",
            PoolingMode::Mean => "pooling_mode_mean_tokens",
            PoolingMode::MeanSqrtLen => "pooling_mode_mean_sqrt_len_tokens",
            PoolingMode::WeightedMean => "pooling_mode_weightedmean_tokens",
            PoolingMode::LastToken => "pooling_mode_lasttoken",
        }
    }
}

impl fmt::Display for PoolingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PoolingMode {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        PoolingMode::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| UnknownName {
            what: "pooling",
            name: text.to_owned(),
            known: "cls, max, mean, mean_sqrt_len, weighted_mean, last_token",
        })
    }
}

/// The lengths that vectors may be cut to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimensions {
    /// Any up to the model's own.
    Any,
    /// These.
    Only(Vec<usize>),
}

/// A set of weight files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// The name: `model.safetensors`, `onnx/model_quantized.onnx`.
    pub name: String,
    /// The format of the files.
    pub format: Format,
    /// The format the numbers are stored in.
    pub stored: Dtype,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// SHA-256 over the content of the weight files, of the modules after pooling and of the tokenizer. Empty where
    /// the files were not hashed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
}

impl Weights {
    /// Bytes that they would take with every number in `dtype`.
    pub fn bytes_in(&self, dtype: Dtype) -> u64 {
        self.bytes / self.stored.bits() * dtype.bits()
    }
}

/// The format of weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Named tensors, for engines that know the computation by a description.
    Safetensors,
    /// A graph: the computation with its numbers.
    Onnx,
}

impl Format {
    /// Whether the computation is in the file: it runs as it is, in its own numbers, and no small model of its
    /// kind can be generated.
    pub fn is_graph(self) -> bool {
        self == Format::Onnx
    }

    /// The file that most models have their weights in.
    pub fn usual_name(self) -> &'static str {
        match self {
            Format::Safetensors => "model.safetensors",
            Format::Onnx => "onnx/model.onnx",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Format::Safetensors => "safetensors",
            Format::Onnx => "ONNX",
        })
    }
}

impl ModelCard {
    /// Numbers in one row that leaves the model.
    pub fn width(&self) -> usize {
        match self.task.value {
            Task::Tokens => self.token_width(),
            Task::Embed | Task::Rerank | Task::Classify | Task::Sparse => {
                width_after(self.token_width() * self.pooling.value.modes.len(), &self.steps.value)
            }
        }
    }

    /// Numbers a token, after what is done to every token.
    pub fn token_width(&self) -> usize {
        width_after(self.sizes.value.hidden, self.token_steps())
    }

    /// What is done to every token's vector.
    pub fn token_steps(&self) -> &[Step] {
        self.head.tokens.as_ref().map_or(&[], |steps| &steps.value)
    }

    /// Whether vectors leave the model one long.
    pub fn normalizes(&self) -> bool {
        let last = match self.task.value {
            Task::Tokens => self.token_steps().last(),
            Task::Embed | Task::Rerank | Task::Classify | Task::Sparse => self.steps.value.last(),
        };
        last == Some(&Step::Normalize)
    }

    /// The name of the prompt for search queries.
    pub fn query_prompt(&self) -> Option<&str> {
        self.prompt_named(&["query", "search_query", "retrieval_query", "s2p_query", "web_search_query"])
    }

    /// The name of the prompt for documents that are searched.
    pub fn document_prompt(&self) -> Option<&str> {
        let names = ["document", "passage", "corpus", "search_document", "retrieval_document"];
        self.prompt_named(&[&names[..], &["retrieval_passage"]].concat())
    }

    /// The first of `names` that is a prompt of the model's. Models write `Retrieval-query` and `retrieval.query` too.
    fn prompt_named(&self, names: &[&str]) -> Option<&str> {
        let plain = |name: &str| name.to_lowercase().replace(['.', '-', ' '], "_");
        let known = || self.prompts.value.keys();
        names.iter().find_map(|name| known().find(|known| plain(known) == *name)).map(String::as_str)
    }

    /// The weights of this name.
    pub fn weights_named(&self, name: &str) -> Option<&Weights> {
        self.weights.iter().find(|weights| weights.name == name)
    }
}
