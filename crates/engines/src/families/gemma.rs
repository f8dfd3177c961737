//! Gemma: scaled embeddings and norms that add one to their weights. Gemma 2 and 3 have norms on both sides of each block
//! and sliding-window layers.

use super::family::Family;
use super::llama::{decoder, windowed};
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{AttentionWindow, Description, LayerPattern, NormKind, NormPlacement};
use crate::positional::rope::Rope;
use crate::tensor_names::TensorNames;

/// What all versions share.
fn gemma(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    decoder(c, d)?;
    d.embedding_scale = Some((d.hidden as f64).sqrt());
    d.norm = NormKind::RmsLessOne;
    d.activate(c, &["hidden_activation", "hidden_act"], "gelu_pytorch_tanh")?;
    let softcap = |key: &str| Some(c.number(&[key], 0.0)).filter(|cap| *cap > 0.0);
    d.attention_softcap = softcap("attn_logit_softcapping");
    d.logit_softcap = softcap("final_logit_softcapping");
    Ok(())
}

/// Gemma.
pub(super) const GEMMA: Family = Family {
    name: "Gemma",
    model_types: &["gemma"],
    examples: "gemma-2b-it",
    goldens: &[],
    generation_goldens: &["tiny-gemma-generate"],
    describe: |c, d| {
        c.require_off(&["attn_logit_softcapping", "final_logit_softcapping"])?;
        gemma(c, d)?;
        d.global.rope = Some(Rope::read(c, "", ("rope_theta", 10_000.0), d.head_dim, d.max_length)?);
        Ok(())
    },
    names: names::LLAMA,
    ..GEMMA3
};

/// Gemma 2: every other layer has a sliding window.
pub(super) const GEMMA2: Family = Family {
    name: "Gemma2",
    model_types: &["gemma2"],
    examples: "gemma-2-2b-it",
    goldens: &[],
    generation_goldens: &["tiny-gemma2-generate"],
    describe: |c, d| {
        gemma(c, d)?;
        d.placement = NormPlacement::Both;
        d.scale = 1.0 / c.number(&["query_pre_attn_scalar"], 256.0).sqrt();
        d.global.rope = Some(Rope::read(c, "", ("rope_theta", 10_000.0), d.head_dim, d.max_length)?);
        d.local = Some(windowed(c, &d.global, c.size(&["sliding_window"]).unwrap_or(4096))?);
        let pattern = LayerPattern::AllBut { every: 2, first: 1 };
        d.layer_pattern = LayerPattern::listed(c, d.layers)?.unwrap_or(pattern);
        Ok(())
    },
    ..GEMMA3
};

/// Gemma3's text model, bidirectional if the config says so.
pub(super) const GEMMA3: Family = Family {
    name: "Gemma3 text (EmbeddingGemma)",
    model_types: &["gemma3_text"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "gemma-3-270m-it, gemma-3-1b-it, embeddinggemma-300m",
    goldens: &["tiny-gemma3", "tiny-gemma3-causal"],
    generation_goldens: &["tiny-gemma3-generate"],
    describe: |c, d| {
        gemma(c, d)?;
        d.placement = NormPlacement::Both;
        d.qk_norm = true;
        d.scale = 1.0 / c.number(&["query_pre_attn_scalar"], 256.0).sqrt();
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

/// Gemma3's text model in a checkpoint that also has a vision model, which is not read.
pub(super) const GEMMA3_MULTIMODAL: Family = Family {
    name: "Gemma3 multimodal (text only)",
    model_types: &["gemma3"],
    nested_config: Some("text_config"),
    default_sizes: &[
        ("num_attention_heads", 8),
        ("vocab_size", 262_208),
        ("max_position_embeddings", 131_072),
    ],
    examples: "gemma-3-4b-it, gemma-3-12b-it, gemma-3-27b-it",
    goldens: &[],
    generation_goldens: &["tiny-gemma3-multimodal-generate"],
    describe: |c, d| {
        // Published configs omit what is the same as in the 4B model.
        d.kv_heads = 4;
        d.head_dim = 256;
        if c.size(&["sliding_window"]).is_none() {
            return Err(c.unsupported("sliding_window"));
        }
        (GEMMA3.describe)(c, d)
    },
    ..GEMMA3
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::describe::from_config;
    use crate::families::sizes;

    #[test]
    fn sizes_that_a_multimodal_config_omits_are_those_of_the_4b_model() {
        let config = json!({
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024
            },
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}
        });
        let d = from_config(&config, &sizes(&config)).expect("it is described");
        assert_eq!([d.layers, d.hidden, d.heads, d.kv_heads, d.head_dim], [34, 2560, 8, 4, 256]);
        assert_eq!([d.vocabulary, d.max_length, d.intermediate], [262_208, 131_072, 10_240]);
        assert!((d.scale - 1.0 / 16.0).abs() < 1e-12);
        let window = d.local.as_ref().and_then(|window| window.before);
        assert_eq!(window, Some(1023));
        let local: Vec<bool> = (0..7).map(|layer| d.is_local(layer)).collect();
        assert_eq!(local, [true, true, true, true, true, false, true]);
    }
}
