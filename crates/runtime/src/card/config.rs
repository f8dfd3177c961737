//! Inputs of a card: the user's overrides and the parsed config files.

use sconce_core::card::{KvCacheDtype, PoolingMode, Sizes, Task};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json::Json;

/// Facts from the user, which take precedence over the model's files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overrides {
    /// Task of the model.
    pub task: Option<Task>,
    /// Pooling mode.
    pub pooling: Option<PoolingMode>,
    /// Whether outputs are L2-normalized.
    pub normalize: Option<bool>,
    /// Maximum number of tokens of a sequence.
    pub max_length: Option<usize>,
    /// Dtype of the KV cache, for text generation.
    pub kv_cache_dtype: Option<KvCacheDtype>,
}

/// Config files that heads are read from.
#[derive(Clone, Copy)]
pub(super) struct ConfigFiles<'a> {
    pub(super) json: &'a Json<'a>,
    pub(super) architecture: &'a str,
    /// `config.json`.
    pub(super) config: &'a Value,
    pub(super) sizes: &'a Sizes,
    /// `modules.json`.
    pub(super) modules: Option<&'a Value>,
    /// `config_sentence_transformers.json`.
    pub(super) sentence: Option<&'a Value>,
}
