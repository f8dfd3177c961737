//! Gemma3's text model: norms on both sides of each block and sliding-window layers, bidirectional if the config says
//! so.

use super::family::Family;
use super::llama::{decoder, windowed};
use super::names;
use crate::description::{AttentionWindow, LayerPattern, NormKind, NormPlacement};
use crate::positional::rope::Rope;
use crate::tensor_names::TensorNames;

/// Gemma3's text model.
pub(super) const GEMMA3: Family = Family {
    name: "Gemma3 text (EmbeddingGemma)",
    model_types: &["gemma3_text"],
    condition: None,
    nested_config: None,
    examples: "embeddinggemma-300m",
    goldens: &["tiny-gemma3", "tiny-gemma3-causal"],
    describe: |c, d| {
        decoder(c, d)?;
        d.embedding_scale = Some((d.hidden as f64).sqrt());
        d.norm = NormKind::RmsLessOne;
        d.placement = NormPlacement::Both;
        d.qk_norm = true;
        d.scale = 1.0 / c.number(&["query_pre_attn_scalar"], 256.0).sqrt();
        d.activate(c, &["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")?;
        d.global.rope =
            Some(Rope::read(c, "full_attention", ("rope_theta", 1_000_000.0), d.head_dim, d.max_length)?);
        let theta = c.get("rope_parameters")["sliding_attention"]["rope_theta"].as_f64();
        let theta = theta.unwrap_or(c.number(&["rope_local_base_freq"], 10_000.0));
        let rope = Some(Rope::unscaled(theta, d.head_dim));
        c.skip(&["layer_types", "sliding_window_pattern", "_sliding_window_pattern"]);
        if let Some(window) = c.size(&["sliding_window"]) {
            // Bidirectional attention splits the window evenly between both sides.
            let half = Some(window / 2);
            let local = match d.global.after {
                None => AttentionWindow { before: half, after: half, rope: None },
                Some(_) => windowed(c, &d.global, window)?,
            };
            d.local = Some(AttentionWindow { rope, ..local });
            let every = c.size(&["sliding_window_pattern", "_sliding_window_pattern"]).unwrap_or(6);
            let pattern = LayerPattern::AllBut { every, first: every.saturating_sub(1) };
            d.layer_pattern = LayerPattern::listed(c, d.layers)?.unwrap_or(pattern);
        }
        Ok(())
    },
    names: TensorNames {
        attention_norms: [&["layers.{}.input_layernorm"], &["layers.{}.post_attention_layernorm"]],
        output_norms: [&["layers.{}.pre_feedforward_layernorm"], &["layers.{}.post_feedforward_layernorm"]],
        ..names::LLAMA
    },
};
