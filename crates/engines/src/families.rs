//! The families of encoders, as data: what differs between them, and what their weights are called.

use serde_json::Value;

/// A family of encoders.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// The names it goes by in `model_type` of `config.json`.
    pub model_types: &'static [&'static str],
    /// Whether positions are counted from the padding id, as RoBERTa does.
    pub positions_after_padding: bool,
    /// Whether tokens have types.
    pub token_types: bool,
    /// Whether attention adds a bias by distance.
    pub relative_bias: bool,
    /// The key of the activation's name.
    pub activation_key: &'static str,
    /// The norm's epsilon, where the family fixes it and the config does not say.
    pub fixed_epsilon: Option<f64>,
    /// What its weights are called.
    pub names: Names,
}

/// What weights are called; `{}` stands for the layer.
#[derive(Debug, PartialEq)]
pub struct Names {
    /// What may stand before every name.
    pub prefixes: &'static [&'static str],
    /// Attention: query, key, value and output.
    pub query: &'static str,
    /// See `query`.
    pub key: &'static str,
    /// See `query`.
    pub value: &'static str,
    /// See `query`.
    pub output: &'static str,
    /// The norm after attention.
    pub attention_norm: &'static str,
    /// The feed-forward part, widening.
    pub up: &'static str,
    /// The feed-forward part, narrowing.
    pub down: &'static str,
    /// The norm after the feed-forward part.
    pub output_norm: &'static str,
}

/// The token table, under which name the prefix is found out.
pub const WORDS: &str = "embeddings.word_embeddings.weight";
/// The position table.
pub const POSITIONS: &str = "embeddings.position_embeddings.weight";
/// The token type table.
pub const TYPES: &str = "embeddings.token_type_embeddings.weight";
/// The norm after the embeddings.
pub const EMBEDDING_NORM: &str = "embeddings.LayerNorm";
/// The table of biases by distance.
pub const RELATIVE_BIAS: &str = "encoder.relative_attention_bias.weight";

const BERT: Names = Names {
    prefixes: &["", "bert.", "roberta.", "model.", "0.auto_model."],
    query: "encoder.layer.{}.attention.self.query",
    key: "encoder.layer.{}.attention.self.key",
    value: "encoder.layer.{}.attention.self.value",
    output: "encoder.layer.{}.attention.output.dense",
    attention_norm: "encoder.layer.{}.attention.output.LayerNorm",
    up: "encoder.layer.{}.intermediate.dense",
    down: "encoder.layer.{}.output.dense",
    output_norm: "encoder.layer.{}.output.LayerNorm",
};

/// All families of this version.
pub const FAMILIES: &[Family] = &[
    Family {
        model_types: &["bert"],
        positions_after_padding: false,
        token_types: true,
        relative_bias: false,
        activation_key: "hidden_act",
        fixed_epsilon: None,
        names: BERT,
    },
    Family {
        model_types: &["roberta", "xlm-roberta", "camembert"],
        positions_after_padding: true,
        token_types: true,
        relative_bias: false,
        activation_key: "hidden_act",
        fixed_epsilon: None,
        names: BERT,
    },
    Family {
        model_types: &["distilbert"],
        positions_after_padding: false,
        token_types: false,
        relative_bias: false,
        activation_key: "activation",
        fixed_epsilon: Some(1e-12),
        names: Names {
            prefixes: &["", "distilbert.", "model.", "0.auto_model."],
            query: "transformer.layer.{}.attention.q_lin",
            key: "transformer.layer.{}.attention.k_lin",
            value: "transformer.layer.{}.attention.v_lin",
            output: "transformer.layer.{}.attention.out_lin",
            attention_norm: "transformer.layer.{}.sa_layer_norm",
            up: "transformer.layer.{}.ffn.lin1",
            down: "transformer.layer.{}.ffn.lin2",
            output_norm: "transformer.layer.{}.output_layer_norm",
        },
    },
    Family {
        model_types: &["mpnet"],
        positions_after_padding: true,
        token_types: false,
        relative_bias: true,
        activation_key: "hidden_act",
        fixed_epsilon: None,
        names: Names {
            prefixes: &["", "mpnet.", "model.", "0.auto_model."],
            query: "encoder.layer.{}.attention.attn.q",
            key: "encoder.layer.{}.attention.attn.k",
            value: "encoder.layer.{}.attention.attn.v",
            output: "encoder.layer.{}.attention.attn.o",
            attention_norm: "encoder.layer.{}.attention.LayerNorm",
            up: "encoder.layer.{}.intermediate.dense",
            down: "encoder.layer.{}.output.dense",
            output_norm: "encoder.layer.{}.output.LayerNorm",
        },
    },
];

/// The family that calls itself `model_type`.
pub fn named(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

/// Every `model_type` known.
pub fn model_types() -> Vec<String> {
    FAMILIES.iter().flat_map(|family| family.model_types).map(|name| (*name).to_owned()).collect()
}

/// The padding id of a config, which some families count positions from.
pub fn padding_id(config: &Value) -> u32 {
    config["pad_token_id"].as_u64().and_then(|id| u32::try_from(id).ok()).unwrap_or(1)
}
