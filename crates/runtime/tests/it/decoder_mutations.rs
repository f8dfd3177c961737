//! Goldens of text generation are sensitive: each changed tensor or config line must show.

use sconce_testkit::compare::largest;
use sconce_testkit::goldens::{Golden, apart};
use serde_json::{Value, json};

use crate::decoders::{names, worst};
use crate::support::tokens;
use crate::wider_mutations::{with_config, without_each_tensor};

/// What the goldens allow: a mistake that moves less than this would not be seen.
const TOLERANCE: f64 = 1e-4;

/// How far the logits and hidden states of lengths between 33 and 300 are from the golden, or those of the first length
/// that shows a change. The rotary embedding of some models depends on the length, so short sequences are left out.
fn moved(name: &str, encoder: &dyn sconce_core::engine::Encoder) -> f64 {
    let golden = Golden::read(name, "golden.safetensors");
    let shortest = if name.starts_with("tiny-phi3-g") { 129 } else { 33 };
    let mut moved = 0.0;
    for length in golden.lengths().into_iter().filter(|length| *length >= shortest) {
        let got = tokens(encoder, &[&golden.ids("ids")[..length]], None).remove(0);
        moved = largest([moved, apart(&got, golden.numbers(&format!("hidden.{length}")))]);
        if moved > TOLERANCE {
            return moved;
        }
    }
    largest([moved, worst(&golden, encoder, 512, |length| length >= shortest)])
}

#[test]
fn every_tensor_shows() {
    for name in names() {
        without_each_tensor(name, |tensor, encoder| {
            let moved = moved(name, encoder);
            let shows = !["vision_tower.", "multi_modal_projector."].iter().any(|part| tensor.contains(part));
            assert_eq!(moved > TOLERANCE, shows, "{name} without `{tensor}` moves by {moved}");
        });
    }
}

/// How far a golden moves with one line of its config changed; infinitely where that is refused.
fn moved_by(name: &str, pointer: &str, value: &Value) -> f64 {
    with_config(name, pointer, value).map_or(f64::INFINITY, |encoder| moved(name, encoder.as_ref()))
}

#[test]
fn every_line_of_a_config_that_matters_shows() {
    let cases = [
        ("tiny-llama-generate", "/rope_theta", json!(10_000.0)),
        ("tiny-llama-generate", "/rms_norm_eps", json!(1e-6)),
        ("tiny-llama-generate", "/num_key_value_heads", json!(4)),
        ("tiny-llama-generate", "/rope_scaling/factor", json!(4.0)),
        ("tiny-llama-generate", "/rope_scaling/low_freq_factor", json!(2.0)),
        ("tiny-llama-generate", "/rope_scaling/high_freq_factor", json!(8.0)),
        ("tiny-llama-generate", "/rope_scaling/original_max_position_embeddings", json!(128)),
        ("tiny-llama-generate", "/hidden_act", json!("gelu")),
        ("tiny-llama-linear-generate", "/rope_parameters/factor", json!(1.0)),
        ("tiny-llama-yarn-generate", "/rope_scaling/factor", json!(2.0)),
        ("tiny-llama-yarn-generate", "/rope_scaling/original_max_position_embeddings", json!(16)),
        ("tiny-llama-yarn-generate", "/rope_scaling/attention_factor", json!(1.0)),
        ("tiny-mistral-generate", "/sliding_window", json!(21)),
        ("tiny-mistral-generate", "/rope_theta", json!(5000.0)),
        ("tiny-mistral3-generate", "/text_config/rope_theta", json!(5000.0)),
        ("tiny-gemma3-multimodal-generate", "/text_config/sliding_window", json!(25)),
        ("tiny-qwen2-generate", "/rope_parameters/rope_theta", json!(10_000.0)),
        ("tiny-qwen3-generate", "/rms_norm_eps", json!(1e-6)),
        ("tiny-smollm3-generate", "/no_rope_layers", json!([1, 1, 0, 1])),
        ("tiny-smollm3-generate", "/no_rope_layers", json!([1, 1, 1, 1])),
        ("tiny-gemma-generate", "/hidden_act", json!("silu")),
        ("tiny-gemma-generate", "/rms_norm_eps", json!(1e-6)),
        ("tiny-gemma2-generate", "/attn_logit_softcapping", json!(4.0)),
        ("tiny-gemma2-generate", "/attn_logit_softcapping", json!(null)),
        ("tiny-gemma2-generate", "/final_logit_softcapping", json!(13.0)),
        ("tiny-gemma2-generate", "/final_logit_softcapping", json!(null)),
        ("tiny-gemma2-generate", "/query_pre_attn_scalar", json!(16)),
        ("tiny-gemma2-generate", "/sliding_window", json!(21)),
        (
            "tiny-gemma2-generate",
            "/layer_types",
            json!(["full_attention", "sliding_attention", "full_attention", "sliding_attention"]),
        ),
        ("tiny-gemma3-generate", "/rope_theta", json!(10_000.0)),
        ("tiny-gemma3-generate", "/rope_local_base_freq", json!(1_000_000.0)),
        ("tiny-gemma3-generate", "/rope_scaling/factor", json!(1.0)),
        ("tiny-gemma3-generate", "/sliding_window", json!(25)),
        ("tiny-gemma3-generate", "/sliding_window_pattern", json!(2)),
        ("tiny-gemma3-generate", "/final_logit_softcapping", json!(30.0)),
        ("tiny-phi3-generate", "/partial_rotary_factor", json!(1.0)),
        ("tiny-phi3-generate", "/rope_scaling/long_factor", json!([1.0, 1.1, 1.25, 1.4, 1.6, 2.0])),
        ("tiny-phi3-generate", "/original_max_position_embeddings", json!(64)),
        ("tiny-phi3-window-generate", "/sliding_window", json!(26)),
        ("tiny-phi-generate", "/partial_rotary_factor", json!(0.75)),
        ("tiny-phi-generate", "/layer_norm_eps", json!(1e-6)),
        ("tiny-stablelm-generate", "/partial_rotary_factor", json!(0.5)),
        ("tiny-stablelm-generate", "/use_parallel_residual", json!(true)),
        ("tiny-stablelm-parallel-generate", "/use_parallel_residual", json!(false)),
        ("tiny-falcon-generate", "/parallel_attn", json!(false)),
        ("tiny-falcon-generate", "/activation", json!("gelu_new")),
        ("tiny-falcon-new-generate", "/num_kv_heads", json!(1)),
        ("tiny-mixtral-generate", "/num_experts_per_tok", json!(1)),
        ("tiny-qwen3-moe-generate", "/num_experts_per_tok", json!(3)),
        ("tiny-qwen3-moe-generate", "/norm_topk_prob", json!(false)),
        ("tiny-gpt-neox-generate", "/use_parallel_residual", json!(false)),
        ("tiny-gpt-neox-generate", "/rotary_pct", json!(0.25)),
        ("tiny-gpt-neox-generate", "/rotary_emb_base", json!(5000)),
        ("tiny-gpt-neox-serial-generate", "/use_parallel_residual", json!(true)),
    ];
    let moved = cases.map(|(name, pointer, value)| (moved_by(name, pointer, &value), name, pointer, value));
    let unseen: Vec<_> = moved.into_iter().filter(|(moved, ..)| *moved <= TOLERANCE).collect();
    assert!(unseen.is_empty(), "{unseen:?}");
}
