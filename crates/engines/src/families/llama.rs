//! Decoders: Llama, Mistral, Qwen2, Qwen3. Causal unless the config says otherwise.

use super::family::Family;
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{AttentionWindow, Biases, Description, LayerPattern, NormKind, NormPlacement};
use crate::positional::rope::Rope;

/// What all decoders share: pre-norm with RMS norms, a gated feed-forward block, grouped-query attention.
pub(super) fn decoder(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    c.require_off(&["attn_logit_softcapping", "num_experts", "num_local_experts", "no_rope_layers"])?;
    c.require_one_of("pretraining_tp", &[1.into()])?;
    d.norm = NormKind::Rms;
    d.placement = NormPlacement::Pre;
    d.final_norm = true;
    d.epsilon = c.number(&["rms_norm_eps"], 1e-6);
    d.gated = true;
    d.kv_heads = c.size(&["num_key_value_heads"]).unwrap_or(d.heads);
    d.head_dim = c.size(&["head_dim"]).unwrap_or(d.head_dim);
    d.scale = 1.0 / (d.head_dim as f64).sqrt();
    let bias = c.flag("attention_bias", false);
    let mlp = c.flag("mlp_bias", false);
    d.biases = Biases { qkv: bias, output: bias, up: mlp, down: mlp };
    let causal = c.flag("is_causal", true) && !c.flag("use_bidirectional_attention", false);
    d.global.after = causal.then_some(0);
    Ok(())
}

/// A decoder with the same rotary embedding in all layers.
fn plain(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    decoder(c, d)?;
    d.activate(c, &["hidden_act"], "silu")?;
    d.global.rope = Some(Rope::read(c, "", ("rope_theta", 10_000.0), d.head_dim, d.max_length)?);
    Ok(())
}

/// The sliding window of `window` tokens, which requires causal attention.
pub(super) fn windowed(
    c: &Config<'_>,
    attention: &AttentionWindow,
    window: usize,
) -> Result<AttentionWindow, Unsupported> {
    if attention.after.is_none() {
        return Err(c.unsupported("sliding_window"));
    }
    Ok(AttentionWindow { before: Some(window.saturating_sub(1)), ..attention.clone() })
}

/// Llama.
pub(super) const LLAMA: Family = Family {
    name: "Llama",
    model_types: &["llama"],
    condition: None,
    nested_config: None,
    examples: "llama-based embedders",
    goldens: &["tiny-llama"],
    describe: plain,
    names: names::LLAMA,
};

/// Mistral.
pub(super) const MISTRAL: Family = Family {
    name: "Mistral",
    model_types: &["mistral"],
    examples: "e5-mistral-7b-instruct, SFR-Embedding-Mistral, Linq-Embed-Mistral",
    goldens: &["tiny-mistral"],
    describe: |c, d| {
        c.require_off(&["layer_types"])?;
        plain(c, d)?;
        if let Some(window) = c.size(&["sliding_window"]) {
            d.global = windowed(c, &d.global, window)?;
        }
        Ok(())
    },
    ..LLAMA
};

/// Sliding windows from layer `max_window_layers` on.
fn qwen(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    plain(c, d)?;
    // Without a window these have no effect.
    c.skip(&["sliding_window", "max_window_layers", "layer_types"]);
    if let (true, Some(window)) = (c.flag("use_sliding_window", false), c.size(&["sliding_window"])) {
        d.local = Some(windowed(c, &d.global, window)?);
        let first = c.size(&["max_window_layers"]).unwrap_or(28);
        d.layer_pattern = LayerPattern::listed(c, d.layers)?.unwrap_or(LayerPattern::From(first));
    }
    Ok(())
}

/// Qwen2.
pub(super) const QWEN2: Family = Family {
    name: "Qwen2",
    model_types: &["qwen2"],
    examples: "gte-Qwen2-1.5B-instruct, gte-Qwen2-7B-instruct",
    goldens: &["tiny-qwen2"],
    describe: |c, d| {
        qwen(c, d)?;
        d.biases = Biases { qkv: true, ..Biases::NONE };
        Ok(())
    },
    ..LLAMA
};

/// Qwen3.
pub(super) const QWEN3: Family = Family {
    name: "Qwen3",
    model_types: &["qwen3"],
    examples: "Qwen3-Embedding-0.6B, -4B, -8B",
    goldens: &["tiny-qwen3"],
    describe: |c, d| {
        qwen(c, d)?;
        d.qk_norm = true;
        Ok(())
    },
    ..LLAMA
};
