//! Phi: Phi-3 and Phi-4 with fused projections, Phi-1 and Phi-2 with parallel attention.

use super::family::Family;
use super::llama::{LLAMA, plain, windowed};
use super::names;
use super::neox::parallel_decoder;
use crate::description::Biases;
use crate::tensor_names::{TensorLayout, TensorNames};

/// Phi-3 and Phi-4.
pub(super) const PHI3: Family = Family {
    name: "Phi-3",
    model_types: &["phi3"],
    examples: "Phi-3-mini-4k-instruct, Phi-4-mini-instruct, phi-4",
    goldens: &[],
    generation_goldens: &["tiny-phi3-generate", "tiny-phi3-window-generate"],
    describe: |c, d| {
        c.require_off(&["lm_head_bias"])?;
        c.require_one_of("full_attn_mod", &[1.into()])?;
        c.require_one_of("interpolate_factor", &[1.into()])?;
        // Read with the rotary embedding, if its scaling depends on it.
        c.skip(&["original_max_position_embeddings"]);
        plain(c, d)?;
        d.epsilon = c.number(&["rms_norm_eps"], 1e-5);
        if let Some(window) = c.size(&["sliding_window"]) {
            d.global = windowed(c, &d.global, window)?;
        }
        Ok(())
    },
    ..LLAMA
};

/// Phi-1 and Phi-2: both blocks of a layer read the output of one norm.
pub(super) const PHI: Family = Family {
    name: "Phi",
    model_types: &["phi"],
    examples: "phi-1_5, phi-2",
    goldens: &[],
    generation_goldens: &["tiny-phi-generate"],
    describe: |c, d| {
        c.require_off(&["qk_layernorm"])?;
        parallel_decoder(c, d, ("rope_theta", "partial_rotary_factor", 0.5))?;
        d.parallel = true;
        d.kv_heads = c.size(&["num_key_value_heads"]).unwrap_or(d.heads);
        d.activate(c, &["hidden_act"], "gelu_new")?;
        d.biases = Biases { logits: true, ..Biases::ALL };
        Ok(())
    },
    names: TensorNames {
        output: &["layers.{}.self_attn.dense"],
        up: &[TensorLayout::Stacked(&["layers.{}.mlp.fc1"])],
        down: &["layers.{}.mlp.fc2"],
        output_norms: [&["layers.{}.input_layernorm"], &[]],
        final_norm: "final_layernorm",
        ..names::LLAMA
    },
    ..LLAMA
};
