//! The families of encoders, as data: how a config becomes a description, and what weights are called.

mod bert;
mod clip;
mod deberta;
mod gemma;
mod gte;
mod jina;
mod llama;
mod modern;
mod names;
mod nomic;
mod t5;

use std::fmt;

use sconce_core::card::Sizes;
use serde_json::Value;

use crate::config::{Config, Unfit};
use crate::description::Description;

pub use names::{Form, Names};

/// A family of encoders.
pub struct Family {
    /// What people call it.
    pub name: &'static str,
    /// The names it goes by in `model_type` of `config.json`.
    pub model_types: &'static [&'static str],
    /// A key and the value by which it is told from another family of the same `model_type`.
    pub when: Option<(&'static str, &'static str)>,
    /// The part of the config that tells of it, where that is not the whole.
    pub within: Option<&'static str>,
    /// Models of it that people use.
    pub known_as: &'static str,
    /// The goldens that it is held to.
    pub goldens: &'static [&'static str],
    /// Makes the description of a plain BERT of the same sizes this family's.
    pub describe: fn(&Config<'_>, &mut Description) -> Result<(), Unfit>,
    /// What its weights are called.
    pub names: Names,
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All families of this version. Of two with the same `model_type` the one with a condition comes first.
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
    &llama::QWEN2,
    &llama::QWEN3,
    &gemma::GEMMA3,
];

/// The family of the model with this config.
pub fn of(config: &Value) -> Option<&'static Family> {
    let model_type = config["model_type"].as_str()?;
    let is_it = |family: &&Family| {
        family.model_types.contains(&model_type)
            && family.when.is_none_or(|(key, value)| config[key].as_str() == Some(value))
    };
    FAMILIES.iter().copied().find(is_it)
}

/// Every `model_type` known.
pub fn model_types() -> Vec<String> {
    let mut names: Vec<String> =
        FAMILIES.iter().flat_map(|family| family.model_types).map(|name| (*name).to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The part of a config that tells of the encoder.
pub(crate) fn root(config: &Value) -> &Value {
    let within = of(config).and_then(|family| family.within).map(|key| &config[key]);
    within.filter(|part| part.is_object()).unwrap_or(config)
}

/// The sizes in a config, under any of the names that families give them; zero where there is none, which no
/// description accepts.
pub fn sizes(config: &Value) -> Sizes {
    let root = root(config);
    let size = |names: &[&str]| names.iter().find_map(|name| root[*name].as_u64()).unwrap_or(0) as usize;
    let [layers, hidden, heads, intermediate, vocabulary, positions] = SIZES.map(size);
    Sizes { layers, hidden, heads, intermediate, vocabulary, positions }
}

/// What configs call the sizes.
pub(crate) const SIZES: [&[&str]; 6] = [
    &["num_hidden_layers", "n_layers", "n_layer", "num_layers"],
    &["hidden_size", "dim", "n_embd", "d_model"],
    &["num_attention_heads", "n_heads", "n_head", "num_heads"],
    &["intermediate_size", "hidden_dim", "n_inner", "d_ff"],
    &["vocab_size"],
    &["max_position_embeddings", "n_positions"],
];

/// The largest sizes that are read, in the order of [`SIZES`]: far above those of any encoder, and small enough that
/// no product of them overflows.
const LARGEST: [usize; 6] = [1 << 12, 1 << 17, 1 << 12, 1 << 20, 1 << 24, 1 << 22];

/// A size of a config that is larger than any that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// What configs call it.
    pub key: &'static str,
    /// Its value.
    pub value: usize,
    /// The largest that is read.
    pub most: usize,
}

/// The first size that is too large.
pub fn too_large(sizes: &Sizes) -> Option<TooLarge> {
    let Sizes { layers, hidden, heads, intermediate, vocabulary, positions } = *sizes;
    let values = [layers, hidden, heads, intermediate, vocabulary, positions];
    let each = SIZES.iter().zip(values).zip(LARGEST);
    each.map(|((names, value), most)| TooLarge { key: names[0], value, most })
        .find(|size| size.value > size.most)
}

/// The padding id of a config, which some families count positions from.
pub(crate) fn padding_id(c: &Config<'_>) -> u32 {
    c.size(&["pad_token_id"]).and_then(|id| u32::try_from(id).ok()).unwrap_or(1)
}
