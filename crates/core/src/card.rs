//! The model card: a model's configuration, each value with the file or flag that set it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::device::UnknownName;
use crate::head::{OutputHead, Step, width_after};
use crate::placement::Dtype;
use crate::sourced::Sourced;

/// A model's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Embedding: a text to one vector.
    Embed,
    /// Reranking: a query and a document to one score.
    Rerank,
    /// Classification: a text or a pair of texts to one score per label.
    Classify,
    /// Sparse embedding: a text to one weight per vocabulary entry, most of them zero.
    Sparse,
    /// Multi-vector embedding (late interaction): a text to one vector per token, compared by MaxSim.
    Tokens,
    /// Text generation: a prompt to its continuation.
    Generate,
}

impl Task {
    /// All tasks.
    pub const ALL: [Task; 6] =
        [Task::Embed, Task::Rerank, Task::Classify, Task::Sparse, Task::Tokens, Task::Generate];

    /// The value of `--task`.
    pub fn name(self) -> &'static str {
        match self {
            Task::Embed => "embed",
            Task::Rerank => "rerank",
            Task::Classify => "classify",
            Task::Sparse => "sparse",
            Task::Tokens => "tokens",
            Task::Generate => "generate",
        }
    }

    /// A verb phrase for messages: "a model that …".
    pub fn does(self) -> &'static str {
        match self {
            Task::Embed => "turns a text into one vector",
            Task::Rerank => "scores a document against a query",
            Task::Classify => "scores labels for a text or a pair of texts",
            Task::Sparse => "turns a text into weights of words",
            Task::Tokens => "turns a text into one vector for each token",
            Task::Generate => "continues a text",
        }
    }

    /// Whether outputs are scores, which have no meaningful norm.
    pub fn scores(self) -> bool {
        match self {
            Task::Rerank | Task::Classify => true,
            Task::Embed | Task::Sparse | Task::Tokens | Task::Generate => false,
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
            known: "embed, rerank, classify, sparse, tokens, generate",
        })
    }
}

/// What the files of a decoder say about text generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationCard {
    /// Tokens that end a text.
    pub end_tokens: Option<Sourced<Vec<u32>>>,
    /// Chat templates in Jinja by name: `default`, and `tool_use` for conversations with tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_templates: Option<Sourced<BTreeMap<String, String>>>,
    /// Texts of special tokens by name, such as `bos_token`: variables of chat templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special_tokens: Option<Sourced<BTreeMap<String, String>>>,
    /// Dtype of the KV cache.
    #[serde(default, skip_serializing_if = "KvCacheDtype::is_auto")]
    pub kv_cache_dtype: KvCacheDtype,
}

/// The dtype of a KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCacheDtype {
    /// The dtype of the weights; half precision if they are quantized.
    #[default]
    Auto,
    /// Eight bits per value, and a scale in f16 per 32 values of a head: GGML's `Q8_0`. Engines that lack it use the
    /// default.
    #[serde(rename = "q8_0")]
    Q8_0,
}

impl KvCacheDtype {
    const ALL: [KvCacheDtype; 2] = [KvCacheDtype::Auto, KvCacheDtype::Q8_0];

    /// The name in flags, config files and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            KvCacheDtype::Auto => "auto",
            KvCacheDtype::Q8_0 => "q8_0",
        }
    }

    /// Whether it is the default.
    pub fn is_auto(&self) -> bool {
        *self == KvCacheDtype::Auto
    }
}

impl FromStr for KvCacheDtype {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        KvCacheDtype::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| UnknownName {
            what: "dtype of the KV cache",
            name: text.to_owned(),
            known: "auto, q8_0",
        })
    }
}

/// A model's configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCard {
    /// The name that the model was opened by.
    pub name: String,
    /// The architecture: `bert`, `mpnet`, ….
    pub architecture: Sourced<String>,
    /// The task.
    pub task: Sourced<Task>,
    /// Layer counts and widths.
    pub sizes: Sourced<Sizes>,
    /// The whole `config.json`, for keys that only the family reads.
    pub config: Value,
    /// Maximum sequence length in tokens, including special tokens.
    pub max_length: Sourced<usize>,
    /// Pooling of token vectors.
    pub pooling: Sourced<Pooling>,
    /// Layers after pooling, in order.
    pub steps: Sourced<Vec<Step>>,
    /// The output head of tasks other than embedding.
    pub head: OutputHead,
    /// Facts for text generation.
    #[serde(default)]
    pub generation: GenerationCard,
    /// Prompts by name; a prompt is prepended to the text.
    pub prompts: Sourced<BTreeMap<String, String>>,
    /// The prompt for callers that name none.
    pub default_prompt: Option<Sourced<String>>,
    /// Dimensions that vectors may be truncated to, if the model was trained for it (Matryoshka).
    pub dimensions: Option<Sourced<Dimensions>>,
    /// The sets of weight files.
    pub weights: Vec<Weights>,
}

/// Layer counts and widths of a transformer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Number of layers.
    pub layers: usize,
    /// Hidden size.
    pub hidden: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Hidden size of the feed-forward block.
    pub intermediate: usize,
    /// Vocabulary size.
    pub vocabulary: usize,
    /// Maximum number of positions.
    pub positions: usize,
}

/// Pooling of token vectors; the results of several modes are concatenated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pooling {
    /// The modes, usually one.
    pub modes: Vec<PoolingMode>,
    /// Whether prompt tokens are pooled.
    pub include_prompt: bool,
}

/// A pooling mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolingMode {
    /// The first token's vector.
    Cls,
    /// The elementwise maximum.
    Max,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the count.
    MeanSqrtLen,
    /// The mean weighted by position: 1, 2, 3, ….
    WeightedMean,
    /// The last token's vector.
    LastToken,
}

impl PoolingMode {
    /// All modes, in the order in which sentence-transformers concatenates their results.
    pub const ALL: [PoolingMode; 6] = [
        PoolingMode::Cls,
        PoolingMode::Max,
        PoolingMode::Mean,
        PoolingMode::MeanSqrtLen,
        PoolingMode::WeightedMean,
        PoolingMode::LastToken,
    ];

    /// The value of `--pooling`.
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

    /// The key of the mode in a sentence-transformers pooling config.
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

/// Dimensions that vectors may be truncated to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dimensions {
    /// Any up to the model's dimension.
    Any,
    /// One of these.
    Only(Vec<usize>),
}

/// A set of weight files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// The name: `model.safetensors`, `onnx/model_quantized.onnx`.
    pub name: String,
    /// The format of the files.
    pub format: Format,
    /// The dtype of the stored weights.
    pub stored: Dtype,
    /// Size of all tensors in bytes.
    pub bytes: u64,
    /// Number of values, if it does not follow from size and dtype: quantized types have scales, and files mix types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<u64>,
    /// SHA-256 over the weight files, the modules after pooling and the tokenizer. Empty if the files were not
    /// hashed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub identity: String,
}

impl Weights {
    /// Size in bytes if stored as `dtype`.
    pub fn bytes_in(&self, dtype: Dtype) -> u64 {
        match self.values {
            _ if dtype == self.stored && !dtype.is_float() => self.bytes,
            Some(values) => values.saturating_mul(dtype.bits()) / 8,
            None => self.bytes / self.stored.bits() * dtype.bits(),
        }
    }
}

/// The format of weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Named tensors; the computation comes from a description.
    Safetensors,
    /// Named tensors, quantized or not, with metadata; the computation comes from a description.
    Gguf,
    /// A graph with its weights.
    Onnx,
}

impl Format {
    /// Whether the file contains the computation. A graph runs in its own dtype and has no twin.
    pub fn is_graph(self) -> bool {
        self == Format::Onnx
    }

    /// The conventional file name.
    pub fn usual_name(self) -> &'static str {
        match self {
            Format::Safetensors => "model.safetensors",
            Format::Gguf => "model.gguf",
            Format::Onnx => "onnx/model.onnx",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "GGUF",
            Format::Onnx => "ONNX",
        })
    }
}

impl ModelCard {
    /// Columns of an output row.
    pub fn width(&self) -> usize {
        match self.task.value {
            Task::Tokens => self.token_width(),
            Task::Generate => self.sizes.value.hidden,
            Task::Embed | Task::Rerank | Task::Classify | Task::Sparse => {
                width_after(self.token_width() * self.pooling.value.modes.len(), &self.steps.value)
            }
        }
    }

    /// Columns of a token vector after the token layers of the head.
    pub fn token_width(&self) -> usize {
        width_after(self.sizes.value.hidden, self.token_steps())
    }

    /// The head's layers for token vectors.
    pub fn token_steps(&self) -> &[Step] {
        self.head.tokens.as_ref().map_or(&[], |steps| &steps.value)
    }

    /// Whether outputs are L2-normalized.
    pub fn normalizes(&self) -> bool {
        let last = match self.task.value {
            Task::Tokens => self.token_steps().last(),
            Task::Embed | Task::Rerank | Task::Classify | Task::Sparse | Task::Generate => {
                self.steps.value.last()
            }
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

    /// The model's prompt under the first of `names`. Spelling variants such as `Retrieval-query` and `retrieval.query`
    /// match too.
    fn prompt_named(&self, names: &[&str]) -> Option<&str> {
        let plain = |name: &str| name.to_lowercase().replace(['.', '-', ' '], "_");
        let known = || self.prompts.value.keys();
        names.iter().find_map(|name| known().find(|known| plain(known) == *name)).map(String::as_str)
    }

    /// The weights called `name`.
    pub fn weights_named(&self, name: &str) -> Option<&Weights> {
        self.weights.iter().find(|weights| weights.name == name)
    }
}
