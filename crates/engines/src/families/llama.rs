//! Decoders: Llama, Mistral, Qwen2, Qwen3, SmolLM3. Causal unless the config says otherwise.

use super::family::Family;
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{AttentionWindow, Biases, Description, LayerPattern, NormKind, NormPlacement};
use crate::positional::rope::Rope;

/// What all decoders share: pre-norm with RMS norms, a gated feed-forward block, grouped-query attention.
pub(super) fn decoder(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    if d.experts.is_none() {
        c.require_off(&["num_experts", "num_local_experts"])?;
    }
    c.require_one_of("pretraining_tp", &[1.into()])?;
    d.norm = NormKind::Rms;
    d.placement = NormPlacement::Pre;
    d.final_norm = true;
    d.epsilon = c.number(&["rms_norm_eps"], 1e-6);
    d.gated = true;
    d.kv_heads = c.size(&["num_key_value_heads"]).unwrap_or(d.kv_heads);
    d.head_dim = c.size(&["head_dim"]).unwrap_or(d.head_dim);
    d.scale = 1.0 / (d.head_dim as f64).sqrt();
    let bias = c.flag("attention_bias", false);
    let mlp = c.flag("mlp_bias", false);
    d.biases = Biases { qkv: bias, output: bias, up: mlp, down: mlp, ..Biases::NONE };
    let causal = c.flag("is_causal", true) && !c.flag("use_bidirectional_attention", false);
    d.global.after = causal.then_some(0);
    Ok(())
}

/// A decoder with the same rotary embedding in all layers.
pub(super) fn plain(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    c.require_off(&["attn_logit_softcapping", "final_logit_softcapping"])?;
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
    default_sizes: &[],
    examples: "Llama-3.2-1B-Instruct, SmolLM2-135M-Instruct, TinyLlama-1.1B",
    goldens: &["tiny-llama"],
    generation_goldens: &["tiny-llama-generate", "tiny-llama-linear-generate", "tiny-llama-yarn-generate"],
    describe: plain,
    names: names::LLAMA,
};

/// Mistral.
pub(super) const MISTRAL: Family = Family {
    name: "Mistral",
    model_types: &["mistral"],
    examples: "Mistral-7B-Instruct, e5-mistral-7b-instruct, SFR-Embedding-Mistral, Linq-Embed-Mistral",
    goldens: &["tiny-mistral"],
    generation_goldens: &["tiny-mistral-generate"],
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

/// Mistral in a checkpoint that also has a vision model, which is not read.
pub(super) const MISTRAL3: Family = Family {
    name: "Mistral3 multimodal (text only)",
    model_types: &["mistral3"],
    nested_config: Some("text_config"),
    examples: "Mistral-Small-3.2-24B-Instruct",
    goldens: &[],
    generation_goldens: &["tiny-mistral3-generate"],
    ..MISTRAL
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
    examples: "Qwen2.5-0.5B-Instruct, gte-Qwen2-1.5B-instruct, gte-Qwen2-7B-instruct",
    goldens: &["tiny-qwen2"],
    generation_goldens: &["tiny-qwen2-generate"],
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
    examples: "Qwen3-0.6B, Qwen3-Embedding-0.6B, -4B, -8B",
    goldens: &["tiny-qwen3"],
    generation_goldens: &["tiny-qwen3-generate"],
    describe: |c, d| {
        qwen(c, d)?;
        d.qk_norm = true;
        Ok(())
    },
    ..LLAMA
};

/// SmolLM3: some layers have no rotary embedding (NoPE).
pub(super) const SMOLLM3: Family = Family {
    name: "SmolLM3",
    model_types: &["smollm3"],
    examples: "SmolLM3-3B",
    goldens: &[],
    generation_goldens: &["tiny-smollm3-generate"],
    describe: |c, d| {
        c.require_off(&["use_sliding_window"])?;
        // Without a window these have no effect.
        c.skip(&["sliding_window", "max_window_layers", "layer_types"]);
        plain(c, d)?;
        let every = c.size(&["no_rope_layer_interval"]).unwrap_or(4).max(1);
        let rotary = match c.get("no_rope_layers").as_array() {
            Some(listed) if listed.len() >= d.layers => {
                listed.iter().map(|rotary| rotary.as_u64() != Some(0)).collect()
            }
            Some(_) => return Err(c.unsupported("no_rope_layers")),
            None => (0..d.layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect(),
        };
        // Layers with a rotary embedding are the local ones, without a window.
        d.local = Some(d.global.clone());
        d.global.rope = None;
        d.layer_pattern = LayerPattern::Listed(rotary);
        Ok(())
    },
    ..LLAMA
};
