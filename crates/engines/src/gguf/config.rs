//! From GGUF metadata to the config keys of the hub, so that one description serves both.

use serde_json::{Map, Value as Json, json};

use super::header::Header;
use super::metadata::{Metadata, Value};
use super::names;

/// Metadata key without the architecture, and the hub's key.
type Key = (&'static str, &'static str);

const SIZES: &[Key] = &[
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("attention.head_count", "num_attention_heads"),
    ("feed_forward_length", "intermediate_size"),
    ("vocab_size", "vocab_size"),
    ("context_length", "max_position_embeddings"),
];

const ENCODER: &[Key] = &[("attention.layer_norm_epsilon", "layer_norm_eps")];

const DECODER: &[Key] = &[
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.causal", "is_causal"),
    ("rope.freq_base", "rope_theta"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
];

/// Keys that are translated by more than their name, or that have no effect on hidden states.
const OTHERS: &[&str] = &[
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "use_parallel_residual",
];

/// Architectures that may rotate a part of each head.
const PARTIAL: &[&str] = &["phi2", "phi3", "stablelm", "gptneox"];
/// Maximum number of layers in a list of layer types.
const MAX_LAYERS: u64 = 1 << 12;

/// The config of the hub that describes the model of `headers`, the files of one model in order. `factors` reads a tensor of
/// rotary factors. Keys of the architecture that have no counterpart stay under their own name: descriptions reject them if
/// they are set.
pub fn hub_config(headers: &[Header], factors: &dyn Fn(&str) -> Option<Vec<f32>>) -> Result<Json, String> {
    let metadata = headers.first().map(|header| &header.metadata).ok_or("no file")?;
    let architecture = metadata.string("general.architecture").ok_or("no `general.architecture`")?;
    if names::of(architecture).is_none() {
        return Err(format!("no description for `{architecture}`; known: {}", names::known()));
    }
    let model = Model { metadata, architecture, headers, factors };
    let is_encoder = ["bert", "nomic-bert"].contains(&architecture);
    let named = [SIZES, if is_encoder { ENCODER } else { DECODER }].concat();
    let mut config = Map::new();
    for (key, value) in metadata.iter() {
        let Some(own) = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        if OTHERS.contains(&own) || is_encoder && own == "rope.freq_base" {
            continue;
        }
        let name = named.iter().find(|(known, _)| *known == own).map_or(key, |(_, hub)| hub);
        config.insert(name.to_owned(), to_json(value));
    }
    // The tensor is authoritative: some files count unused tokens only there.
    if let Some(rows) = model.rows("token_embd.weight") {
        config.insert("vocab_size".to_owned(), rows.into());
    }
    match architecture {
        "bert" => model.bert(&mut config),
        "nomic-bert" => model.nomic_bert(&mut config),
        _ => model.decoder(&mut config)?,
    }
    Ok(Json::Object(config))
}

/// The metadata of a model, and its tensors.
struct Model<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
    headers: &'a [Header],
    factors: &'a dyn Fn(&str) -> Option<Vec<f32>>,
}

impl Model<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(&format!("{}.{key}", self.architecture))
    }

    /// The rows of a tensor; none if it does not exist.
    fn rows(&self, name: &str) -> Option<usize> {
        let mut tensors = self.headers.iter().flat_map(|header| &header.tensors);
        tensors.find(|tensor| tensor.name == name).map(|tensor| tensor.shape[0])
    }

    fn has(&self, name: &str) -> bool {
        self.rows(name).is_some()
    }

    fn bert(&self, config: &mut Map<String, Json>) {
        config.insert("model_type".to_owned(), "bert".into());
        config.insert("type_vocab_size".to_owned(), self.rows("token_types.weight").unwrap_or(0).into());
        if let Some(rows) = self.rows("position_embd.weight") {
            config.insert("max_position_embeddings".to_owned(), rows.into());
        }
    }

    fn nomic_bert(&self, config: &mut Map<String, Json>) {
        config.insert("model_type".to_owned(), "nomic_bert".into());
        config.insert("type_vocab_size".to_owned(), self.rows("token_types.weight").unwrap_or(0).into());
        if let Some(theta) = self.get("rope.freq_base").and_then(Value::as_f64) {
            config.insert("rotary_emb_base".to_owned(), theta.into());
        }
        for (tensor, key) in [
            ("blk.0.attn_qkv.bias", "qkv_proj_bias"),
            ("blk.0.ffn_up.bias", "mlp_fc1_bias"),
            ("blk.0.ffn_down.bias", "mlp_fc2_bias"),
        ] {
            config.insert(key.to_owned(), self.has(tensor).into());
        }
    }

    fn decoder(&self, config: &mut Map<String, Json>) -> Result<(), String> {
        let number = |key: &str| self.get(key).and_then(Value::as_f64);
        let size = |key: &str| self.get(key).and_then(Value::as_u64);
        let model_type = match self.architecture {
            // Mistral's files are of this architecture too; the window tells them apart.
            "llama" if size("expert_count").is_some_and(|count| count > 0) => "mixtral",
            "llama" if self.get("attention.sliding_window").is_some() => "mistral",
            "gemma3" | "gemma-embedding" => "gemma3_text",
            "qwen3moe" => "qwen3_moe",
            "phi2" => "phi",
            "gptneox" => "gpt_neox",
            other => other,
        };
        config.insert("model_type".to_owned(), model_type.into());
        let heads = size("attention.head_count").unwrap_or(1);
        let share = size("embedding_length").unwrap_or(0).checked_div(heads).unwrap_or(0);
        let head_dim = size("attention.key_length").unwrap_or(share);
        let mut set = |key: &str, value: Json| {
            config.insert(key.to_owned(), value);
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
            let Some(size) = size(key).filter(|&size| size != head_dim) else { continue };
            if key == "rope.dimension_count" && PARTIAL.contains(&self.architecture) {
                let share = if model_type == "gpt_neox" { "rotary_pct" } else { "partial_rotary_factor" };
                set(share, (size as f64 / head_dim as f64).into());
                continue;
            }
            let architecture = self.architecture;
            return Err(format!("`{architecture}.{key}` is {size}, and heads have dimension {head_dim}"));
        }
        if let Some(window) = size("attention.sliding_window").filter(|&window| window > 0) {
            set("sliding_window", window.into());
        }
        if let Some(period) = size("attention.sliding_window_pattern").filter(|&period| period > 0) {
            let layers = size("block_count").unwrap_or(0).min(MAX_LAYERS);
            let is_local = |layer: u64| layer % period < period - 1;
            let kind = |layer| if is_local(layer) { "sliding_attention" } else { "full_attention" };
            set("layer_types", (0..layers).map(kind).collect::<Vec<_>>().into());
        }
        self.family_keys(model_type, [head_dim, share], &mut set);
        let scaling = self.get("rope.scaling.type").and_then(Value::as_str).filter(|kind| *kind != "none");
        if let Some(factors) = self.rotary_factors() {
            if let Some(kind) = scaling.filter(|kind| *kind != "longrope") {
                return Err(format!(
                    "`{}.rope.scaling.type` is {kind}, beside a tensor of factors",
                    self.architecture
                ));
            }
            set("rope_scaling", factors);
            return Ok(());
        }
        match scaling {
            None => {}
            Some(kind @ ("linear" | "yarn")) => {
                let mut scaling = json!({ "rope_type": kind, "factor": number("rope.scaling.factor") });
                if let Some(length) = number("rope.scaling.original_context_length") {
                    scaling["original_max_position_embeddings"] = length.into();
                }
                config.insert("rope_scaling".to_owned(), scaling);
            }
            Some(kind) => return Err(format!("`{}.rope.scaling.type` is {kind}", self.architecture)),
        }
        Ok(())
    }
}

impl Model<'_> {
    /// Rotary factors in tensors: of Llama 3, or of LongRoPE by context length. Both divide the frequencies.
    fn rotary_factors(&self) -> Option<Json> {
        let number = |key: &str| self.get(key).and_then(Value::as_f64);
        let context = number("context_length");
        if let Some(factors) = (self.factors)("rope_freqs.weight") {
            return Some(json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
                "original_max_position_embeddings": context,
            }));
        }
        let [short, long] =
            ["short", "long"].map(|kind| (self.factors)(&format!("rope_factors_{kind}.weight")));
        Some(json!({
            "rope_type": "longrope", "short_factor": short?, "long_factor": long?,
            "attention_factor": number("rope.scaling.attn_factor"),
            "original_max_position_embeddings": number("rope.scaling.original_context_length").or(context),
        }))
    }

    /// Sets the keys that only one family has, or that follow from tensors. `head_dim` is that of the file, `share` that of
    /// a head in the hidden size.
    fn family_keys(&self, model_type: &str, [head_dim, share]: [u64; 2], set: &mut impl FnMut(&str, Json)) {
        let number = |key: &str| self.get(key).and_then(Value::as_f64);
        let size = |key: &str| self.get(key).and_then(Value::as_u64);
        match model_type {
            // All projections have a bias, or none has.
            "phi" => {}
            "qwen3_moe" => set("norm_topk_prob", true.into()),
            "gpt_neox" => {
                let parallel = self.get("use_parallel_residual").and_then(Value::as_bool);
                set("use_parallel_residual", parallel.unwrap_or(true).into());
                set("rotary_emb_base", number("rope.freq_base").unwrap_or(1e4).into());
                set("rope_theta", Json::Null);
            }
            "stablelm" => {
                set("use_qkv_bias", self.has("blk.0.attn_q.bias").into());
                // Files of serial models may have the key `use_parallel_residual`. The second norm is authoritative.
                set("use_parallel_residual", (!self.has("blk.0.ffn_norm.weight")).into());
            }
            "falcon" => {
                let kv_heads = size("attention.head_count_kv").unwrap_or(1);
                set("num_kv_heads", kv_heads.into());
                set(
                    "new_decoder_architecture",
                    (kv_heads > 1 || self.has("blk.0.attn_norm_2.weight")).into(),
                );
                set("num_key_value_heads", Json::Null);
            }
            _ => {
                if self.has("blk.0.attn_q.bias") && self.has("blk.0.attn_output.bias") {
                    set("attention_bias", true.into());
                }
                if self.has("blk.0.ffn_up.bias") {
                    set("mlp_bias", true.into());
                }
            }
        }
        if model_type == "gemma3_text" {
            if self.architecture == "gemma-embedding" {
                set("use_bidirectional_attention", true.into());
            }
            set("rope_local_base_freq", number("rope.freq_base_swa").unwrap_or(1e4).into());
        }
        if let Some(largest) = match model_type {
            "gemma2" => Some(46),
            "gemma3_text" => Some(62),
            _ => None,
        } {
            // The largest model scales by the share of a head in the hidden size, all others by its dimension.
            let scalar = if size("block_count") == Some(largest) { share } else { head_dim };
            set("query_pre_attn_scalar", scalar.into());
        }
    }
}

/// Arrays become their text, which no description reads.
fn to_json(value: &Value) -> Json {
    match value {
        Value::Unsigned(value) => (*value).into(),
        Value::Signed(value) => (*value).into(),
        Value::F32(_) | Value::F64(_) => value.as_f64().into(),
        Value::Bool(value) => (*value).into(),
        Value::String(text) => text.as_str().into(),
        Value::Numbers(array) => format!("an array of {} numbers", array.len()).into(),
        Value::Strings(array) => format!("an array of {} strings", array.len()).into(),
    }
}

#[cfg(test)]
mod tests;
