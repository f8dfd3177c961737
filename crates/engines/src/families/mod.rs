//! The table of model families.

mod bert;
mod clip;
mod deberta;
mod encoder;
mod family;
mod gemma;
mod gte;
mod jina;
mod llama;
mod modern;
mod moe;
mod names;
mod neox;
mod nomic;
mod phi;
mod t5;

use sconce_core::card::Sizes;
use serde_json::Value;

pub use family::Family;

/// All families. Of two with the same `model_type`, the one with a condition comes first.
pub const FAMILIES: &[&Family] = &[
    &jina::JINA,
    &bert::BERT,
    &bert::ROBERTA,
    &bert::DISTILBERT,
    &bert::MPNET,
    &nomic::NOMIC,
    &modern::MODERN,
    &gte::GTE,
    &deberta::DEBERTA,
    &deberta::DEBERTA_V2,
    &t5::T5,
    &clip::CLIP,
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::MISTRAL3,
    &llama::QWEN2,
    &llama::QWEN3,
    &llama::SMOLLM3,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &gemma::GEMMA3_MULTIMODAL,
    &phi::PHI3,
    &phi::PHI,
    &moe::MIXTRAL,
    &moe::QWEN3_MOE,
    &neox::STABLELM,
    &neox::FALCON,
    &neox::GPT_NEOX,
];

/// The family of a config.
pub fn of(config: &Value) -> Option<&'static Family> {
    let model_type = config["model_type"].as_str()?;
    let is_it = |family: &&Family| {
        family.model_types.contains(&model_type)
            && family.condition.is_none_or(|(key, value)| config[key].as_str() == Some(value))
    };
    FAMILIES.iter().copied().find(is_it)
}

/// All known values of `model_type`, sorted.
pub fn model_types() -> Vec<String> {
    let mut names: Vec<String> =
        FAMILIES.iter().flat_map(|family| family.model_types).map(|name| (*name).to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The config of the text model: `config` itself or the nested config that its family names.
pub(crate) fn root(config: &Value) -> &Value {
    let within = of(config).and_then(|family| family.nested_config).map(|key| &config[key]);
    within.filter(|part| part.is_object()).unwrap_or(config)
}

/// The sizes in a config, under any of the keys that families use, or their defaults. A missing size is zero, which every
/// description rejects.
pub fn sizes(config: &Value) -> Sizes {
    let root = root(config);
    let defaults = of(config).map_or(&[][..], |family| family.default_sizes);
    let default =
        |names: &[&str]| defaults.iter().find(|(name, _)| *name == names[0]).map_or(0, |(_, size)| *size);
    let size = |names: &[&str]| {
        names
            .iter()
            .find_map(|name| root[*name].as_u64())
            .map_or_else(|| default(names), |size| size as usize)
    };
    let [layers, hidden, heads, intermediate, vocabulary, positions] = SIZES.map(size);
    Sizes { layers, hidden, heads, intermediate, vocabulary, positions }
}

/// Config keys of the sizes.
pub(crate) const SIZES: [&[&str]; 6] = [
    &["num_hidden_layers", "n_layers", "n_layer", "num_layers"],
    &["hidden_size", "dim", "n_embd", "d_model"],
    &["num_attention_heads", "n_heads", "n_head", "num_heads"],
    &["intermediate_size", "hidden_dim", "n_inner", "d_ff", "ffn_hidden_size"],
    &["vocab_size"],
    &["max_position_embeddings", "n_positions"],
];

/// Maximum sizes, in the order of [`SIZES`]: far above those of any model, and small enough that no product of them
/// overflows.
const MAX_SIZES: [usize; 6] = [1 << 12, 1 << 17, 1 << 12, 1 << 20, 1 << 24, 1 << 22];

/// A size above its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// Its config key.
    pub key: &'static str,
    /// Its value.
    pub value: usize,
    /// The maximum.
    pub most: usize,
}

/// The first size above its maximum.
pub fn too_large(sizes: &Sizes) -> Option<TooLarge> {
    let Sizes { layers, hidden, heads, intermediate, vocabulary, positions } = *sizes;
    let values = [layers, hidden, heads, intermediate, vocabulary, positions];
    let each = SIZES.iter().zip(values).zip(MAX_SIZES);
    each.map(|((names, value), most)| TooLarge { key: names[0], value, most })
        .find(|size| size.value > size.most)
}
