//! Golden outputs of every family are sensitive: each changed tensor or config line must show.

use sconce_core::engine::Encoder;
use sconce_core::placement::{Dtype, EngineId};
use sconce_testkit::goldens::{self, Golden};
use serde_json::{Value, json};

use crate::support::{Copy, Tensor, load, load_on, read_tensors, worst, write_tensors};
use crate::wider::names;

/// What the goldens allow: a mistake that moves less than this would not be seen.
const TOLERANCE: f64 = 1e-4;

fn new() -> impl Iterator<Item = &'static str> {
    names().filter(|name| !goldens::TINY.contains(name))
}

/// A tensor without effect: one that nothing reads, or a bias of keys that every score of a query has in common.
fn is_idle(name: &str, tensor: &str) -> bool {
    tensor.ends_with("self_attn.k_proj.bias") && name == "tiny-clip"
        || tensor.ends_with("self.key.bias") && name == "tiny-jina"
        || tensor.ends_with("pos_key_proj.bias")
}

/// A tensor with the values that are neutral for its kind.
fn neutral(name: &str, tensor: &mut Tensor) {
    let is_norm = tensor.shape.len() == 1 && tensor.name.ends_with("weight") && !name.contains("gemma");
    tensor.values.fill(if is_norm { 1.0 } else { 0.0 });
}

/// Calls `check` with the name of each tensor of a golden, and the model in which it is neutral.
pub(crate) fn without_each_tensor(name: &str, check: impl Fn(&str, &dyn Encoder)) {
    let copy = Copy::of(name);
    let path = copy.file("model.safetensors");
    let all = read_tensors(&path);
    for place in 0..all.len() {
        let mut tensors = all.clone();
        neutral(name, &mut tensors[place]);
        write_tensors(&path, &tensors);
        check(&all[place].name, load(&copy.read().expect("a model"), Dtype::F32).as_ref());
    }
}

/// A golden with one line of its config changed; none where that is refused.
pub(crate) fn with_config(name: &str, pointer: &str, value: &Value) -> Option<Box<dyn Encoder>> {
    let copy = Copy::of(name).json("config.json", |config| {
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        config.pointer_mut(parent).expect("the config has it")[key] = value.clone();
    });
    load_on(EngineId::Candle, &copy.read().ok()?, Dtype::F32).ok()
}

#[test]
fn every_tensor_shows() {
    for name in new() {
        let golden = Golden::read(name, "golden.safetensors");
        without_each_tensor(name, |tensor, encoder| {
            let moved = worst(&golden, encoder);
            let shows = !is_idle(name, tensor);
            assert_eq!(moved > TOLERANCE, shows, "{name} without `{tensor}` moves by {moved}");
        });
    }
}

/// How far a golden moves with one line of its config changed; infinitely where that is refused.
fn moved_by(name: &str, pointer: &str, value: &Value) -> f64 {
    let golden = Golden::read(name, "golden.safetensors");
    with_config(name, pointer, value).map_or(f64::INFINITY, |encoder| worst(&golden, encoder.as_ref()))
}

#[test]
fn every_line_of_a_config_that_matters_shows() {
    let cases = [
        ("tiny-gemma3", "/attn_logit_softcapping", json!(2.0)),
        ("tiny-nomic", "/rotary_emb_base", json!(500)),
        ("tiny-nomic", "/rotary_emb_interleaved", json!(true)),
        ("tiny-nomic", "/layer_norm_epsilon", json!(1e-12)),
        ("tiny-nomic", "/activation_function", json!("geglu")),
        ("tiny-nomic", "/n_head", json!(2)),
        ("tiny-modernbert", "/local_attention", json!(18)),
        ("tiny-modernbert", "/global_attn_every_n_layers", json!(2)),
        ("tiny-modernbert", "/global_rope_theta", json!(10000.0)),
        ("tiny-modernbert", "/local_rope_theta", json!(160_000.0)),
        ("tiny-modernbert", "/norm_eps", json!(1e-12)),
        ("tiny-modernbert", "/hidden_activation", json!("silu")),
        ("tiny-modernbert", "/num_attention_heads", json!(2)),
        ("tiny-jina", "/feed_forward_type", json!("reglu")),
        ("tiny-jina", "/layer_norm_eps", json!(1e-12)),
        ("tiny-jina", "/num_attention_heads", json!(4)),
        ("tiny-gte", "/rope_theta", json!(500)),
        ("tiny-gte", "/rope_scaling", json!(null)),
        ("tiny-gte", "/rope_scaling/factor", json!(4.0)),
        ("tiny-gte", "/hidden_act", json!("silu")),
        ("tiny-gte", "/layer_norm_eps", json!(1e-12)),
        ("tiny-qwen2", "/rope_scaling", json!(null)),
        ("tiny-qwen2", "/rope_scaling/factor", json!(2.0)),
        ("tiny-qwen2", "/rope_scaling/original_max_position_embeddings", json!(32)),
        ("tiny-qwen2", "/rope_theta", json!(500.0)),
        ("tiny-qwen2", "/sliding_window", json!(25)),
        ("tiny-qwen2", "/use_sliding_window", json!(false)),
        ("tiny-qwen2", "/max_window_layers", json!(0)),
        ("tiny-qwen2", "/rms_norm_eps", json!(1e-12)),
        ("tiny-qwen2", "/num_key_value_heads", json!(1)),
        ("tiny-qwen2", "/is_causal", json!(false)),
        ("tiny-qwen3", "/rope_parameters/rope_theta", json!(10000.0)),
        ("tiny-qwen3", "/hidden_act", json!("gelu")),
        ("tiny-qwen3", "/is_causal", json!(false)),
        ("tiny-qwen3", "/head_dim", json!(8)),
        ("tiny-llama", "/rope_parameters/rope_type", json!("default")),
        ("tiny-llama", "/rope_parameters/low_freq_factor", json!(2.0)),
        ("tiny-llama", "/rope_parameters/high_freq_factor", json!(6.0)),
        ("tiny-llama", "/rope_parameters/original_max_position_embeddings", json!(128)),
        ("tiny-llama", "/attention_bias", json!(false)),
        ("tiny-llama", "/mlp_bias", json!(false)),
        ("tiny-mistral", "/sliding_window", json!(21)),
        ("tiny-mistral", "/rope_theta", json!(500.0)),
        ("tiny-gemma3", "/use_bidirectional_attention", json!(false)),
        ("tiny-gemma3", "/sliding_window", json!(26)),
        ("tiny-gemma3", "/sliding_window_pattern", json!(2)),
        ("tiny-gemma3", "/query_pre_attn_scalar", json!(16)),
        ("tiny-gemma3", "/rope_theta", json!(10000.0)),
        ("tiny-gemma3", "/rope_local_base_freq", json!(1_000_000.0)),
        ("tiny-gemma3", "/hidden_activation", json!("gelu")),
        ("tiny-gemma3-causal", "/layer_types", json!(["full_attention", "full_attention", "full_attention"])),
        ("tiny-gemma3-causal", "/rope_parameters/sliding_attention/rope_theta", json!(1_000_000.0)),
        ("tiny-t5", "/relative_attention_max_distance", json!(128)),
        ("tiny-t5", "/layer_norm_epsilon", json!(1e-12)),
        ("tiny-t5", "/feed_forward_proj", json!("gelu")),
        ("tiny-t5-gated", "/feed_forward_proj", json!("gated-silu")),
        ("tiny-deberta", "/max_relative_positions", json!(39)),
        ("tiny-deberta", "/pos_att_type", json!("c2p")),
        ("tiny-deberta", "/pos_att_type", json!("p2c")),
        ("tiny-deberta", "/layer_norm_eps", json!(1e-12)),
        ("tiny-deberta", "/relative_attention", json!(false)),
        ("tiny-deberta-v2", "/position_biased_input", json!(false)),
        ("tiny-deberta-v3", "/norm_rel_ebd", json!("none")),
        ("tiny-deberta-v3", "/share_att_key", json!(false)),
        ("tiny-deberta-v3", "/max_relative_positions", json!(100)),
        ("tiny-clip", "/text_config/hidden_act", json!("gelu")),
        ("tiny-clip", "/text_config/layer_norm_eps", json!(1e-12)),
        ("tiny-clip", "/text_config/num_attention_heads", json!(2)),
    ];
    for (name, pointer, value) in cases {
        let moved = moved_by(name, pointer, &value);
        assert!(moved > TOLERANCE, "{name} with {pointer} {value} moves by {moved}");
    }
}

#[test]
fn what_no_description_honours_is_refused() {
    let cases = [
        ("tiny-nomic", "/prenorm", json!(true)),
        ("tiny-nomic", "/use_rms_norm", json!(true)),
        ("tiny-nomic", "/rotary_emb_fraction", json!(0.5)),
        ("tiny-nomic", "/num_experts", json!(8)),
        ("tiny-gte", "/rope_scaling/type", json!("longrope")),
        ("tiny-gte", "/rope_scaling/mixed_b", json!(0.6)),
        ("tiny-gte", "/layer_norm_type", json!("rms_norm")),
        ("tiny-gte", "/logn_attention_scale", json!(true)),
        ("tiny-qwen2", "/rope_scaling/type", json!("su")),
        ("tiny-llama", "/pretraining_tp", json!(2)),
        ("tiny-qwen3", "/attn_logit_softcapping", json!(50.0)),
        ("tiny-deberta", "/talking_head", json!(true)),
        ("tiny-deberta-v2", "/conv_kernel_size", json!(3)),
        ("tiny-deberta-v2", "/embedding_size", json!(16)),
        ("tiny-qwen3", "/quantization_config", json!({ "quant_method": "gptq" })),
        ("tiny-modernbert", "/layer_types", json!(vec!["chunked_attention"; 4])),
    ];
    for (name, pointer, value) in cases {
        assert!(moved_by(name, pointer, &value).is_infinite(), "{name} with {pointer} {value}");
    }
}

/// A layer with a part that the description lacks would compute something else.
#[test]
fn a_tensor_without_a_place_is_refused() {
    for (name, tensor) in [
        ("tiny-bert", "encoder.layer.1.attention.self.distance_embedding.weight"),
        ("tiny-llama", "layers.0.self_attn.q_norm.weight"),
        ("tiny-mistral", "layers.0.self_attn.qkv_proj.bias"),
        ("tiny-jina", "bert.encoder.layer.0.attention.self.layer_norm_q.weight"),
    ] {
        let copy = Copy::of(name);
        let path = copy.file("model.safetensors");
        let mut tensors = read_tensors(&path);
        tensors.push(Tensor { name: tensor.to_owned(), shape: vec![1], values: vec![0.5] });
        write_tensors(&path, &tensors);
        for engine in crate::support::INTERPRETERS {
            let refused = crate::support::load_on(engine, &copy.read().expect("a model"), Dtype::F32);
            let obstacle = refused.err().expect("it is refused");
            assert!(obstacle.to_string().contains(tensor), "{obstacle}");
        }
    }
}

/// The same weights under the names of another form.
#[test]
fn other_forms_of_names_are_the_same_model() {
    let forms: [(&str, &[(&str, &str)]); 6] = [
        ("tiny-nomic", &[("", "nomic_bert.")]),
        ("tiny-qwen3", &[("", "model.")]),
        ("tiny-modernbert", &[("model.", "")]),
        ("tiny-t5", &[("shared.weight", "encoder.embed_tokens.weight")]),
        ("tiny-jina", &[("bert.", "")]),
        ("tiny-clip", &[("text_model.", "")]),
    ];
    for (name, pairs) in forms {
        let copy = Copy::of(name);
        let path = copy.file("model.safetensors");
        let mut tensors = read_tensors(&path);
        for tensor in &mut tensors {
            for (from, to) in pairs {
                tensor.name = if from.is_empty() {
                    format!("{to}{}", tensor.name)
                } else {
                    tensor.name.replace(from, to)
                };
            }
        }
        write_tensors(&path, &tensors);
        let moved = worst(
            &Golden::read(name, "golden.safetensors"),
            load(&copy.read().expect("a model"), Dtype::F32).as_ref(),
        );
        assert!(moved < TOLERANCE, "{name} as {pairs:?} moves by {moved}");
    }
}
