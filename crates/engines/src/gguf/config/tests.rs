//! Metadata becomes the config of the hub, and the same description.

use super::super::blocks::StoredType;
use super::super::header::TensorInfo;
use super::*;
use crate::{describe, families};

/// A header with this metadata and one tensor per name, of as many rows as stand after it.
fn header(metadata: &[(&str, Value)], tensors: &[(&str, usize)]) -> Header {
    let tensor = |&(name, rows): &(&str, usize)| TensorInfo {
        name: name.to_owned(),
        shape: vec![rows, 32],
        stored: StoredType::F32,
        start: 0,
        length: 0,
    };
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    Header { metadata: metadata.collect(), tensors: tensors.iter().map(tensor).collect() }
}

fn string(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn integer(value: u64) -> Value {
    Value::Unsigned(value)
}

/// Sizes of 4 heads of dimension 8.
fn sizes(architecture: &'static str) -> Vec<(String, Value)> {
    let sizes = [
        ("block_count", 2),
        ("embedding_length", 32),
        ("attention.head_count", 4),
        ("feed_forward_length", 64),
        ("context_length", 128),
    ];
    let mut entries: Vec<_> =
        sizes.iter().map(|&(key, value)| (format!("{architecture}.{key}"), integer(value))).collect();
    entries.push(("general.architecture".to_owned(), string(architecture)));
    entries
}

fn config(
    architecture: &'static str,
    more: &[(&str, Value)],
    tensors: &[(&str, usize)],
) -> Result<Json, String> {
    let sizes = sizes(architecture);
    let mut entries: Vec<(&str, Value)> =
        sizes.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    entries.extend(more.iter().map(|(key, value)| (*key, value.clone())));
    hub_config(&[header(&entries, tensors)], &|_| None)
}

fn describes(config: &Json) -> Result<crate::description::Description, String> {
    describe::from_config(config, &families::sizes(config)).map_err(|obstacle| obstacle.to_string())
}

#[test]
fn a_bert_has_the_description_of_its_hub_config() {
    let tensors = [("token_embd.weight", 90), ("position_embd.weight", 120), ("token_types.weight", 2)];
    let epsilon = ("bert.attention.layer_norm_epsilon", Value::F32(1e-12));
    let causal = ("bert.attention.causal", Value::Bool(false));
    let found =
        config("bert", &[epsilon, causal, ("bert.pooling_type", integer(1))], &tensors).expect("known");
    let hub = json!({
        "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
        "intermediate_size": 64, "vocab_size": 90, "max_position_embeddings": 120, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    });
    assert_eq!(describes(&found), describes(&hub));
    assert!(describes(&found).is_ok());
}

#[test]
fn a_decoder_has_the_description_of_its_hub_config() {
    let more = [
        ("qwen3.attention.head_count_kv", integer(2)),
        ("qwen3.attention.key_length", integer(16)),
        ("qwen3.attention.value_length", integer(16)),
        ("qwen3.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("qwen3.rope.freq_base", Value::F32(1e6)),
    ];
    let found = config("qwen3", &more, &[("token_embd.weight", 90)]).expect("known");
    let hub = json!({
        "model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
        "intermediate_size": 64, "vocab_size": 90, "max_position_embeddings": 128, "num_key_value_heads": 2,
        "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    });
    assert_eq!(describes(&found), describes(&hub));
    assert!(describes(&found).is_ok());
}

#[test]
fn architectures_have_their_model_type() {
    let window = [("llama.attention.sliding_window", integer(16))];
    for (architecture, more, model_type) in [
        ("llama", &[][..], "llama"),
        ("llama", &window[..], "mistral"),
        ("qwen2", &[], "qwen2"),
        ("gemma3", &[], "gemma3_text"),
        ("nomic-bert", &[], "nomic_bert"),
    ] {
        let config = config(architecture, more, &[("token_embd.weight", 90)]).expect("known");
        assert_eq!(config["model_type"], model_type);
        assert!(describes(&config).is_ok(), "{architecture}: {:?}", describes(&config));
    }
    let error = config("mamba", &[], &[]).expect_err("unknown");
    assert!(error.contains("`mamba`; known: bert"), "{error}");
}

#[test]
fn metadata_without_a_counterpart_is_rejected_by_name() {
    let tensors = [("token_embd.weight", 90)];
    let odd = config("llama", &[("llama.logit_scale", Value::F32(2.0))], &tensors).expect("known");
    assert!(describes(&odd).is_err_and(|error| error.contains("llama.logit_scale 2.0")));
    let experts = config("qwen2", &[("qwen2.expert_count", integer(8))], &tensors).expect("known");
    assert!(describes(&experts).is_err_and(|error| error.contains("num_experts 8")));
    let experts = [("llama.expert_count", integer(4)), ("llama.expert_used_count", integer(5))];
    let experts = config("llama", &experts, &tensors).expect("known");
    assert!(describes(&experts).is_err_and(|error| error.contains("5 of 4 experts per token")));
    let off = config("llama", &[("llama.expert_used_count", integer(0))], &tensors).expect("known");
    assert!(describes(&off).is_ok());
    let error =
        config("llama", &[("llama.rope.dimension_count", integer(4))], &tensors).expect_err("partial");
    assert!(error.contains("`llama.rope.dimension_count` is 4, and heads have dimension 8"), "{error}");
    let error =
        config("llama", &[("llama.rope.scaling.type", string("longrope"))], &tensors).expect_err("scaling");
    assert!(error.contains("longrope"), "{error}");
}
