//! ModernBERT: pre-norm encoder with rotary embeddings, a gated feed-forward block and local attention layers.

use super::family::Family;
use super::names;
use crate::description::{AttentionWindow, Biases, LayerPattern, NormKind, NormPlacement};
use crate::positional::rope::Rope;
use crate::tensor_names::{TensorLayout, TensorNames};

/// ModernBERT.
pub(super) const MODERN: Family = Family {
    name: "ModernBERT",
    model_types: &["modernbert"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "gte-modernbert-base, modernbert-embed-base",
    goldens: &["tiny-modernbert"],
    generation_goldens: &[],
    describe: |c, d| {
        let bias = |key: &str| c.flag(key, false);
        // ModernBERT always uses rotary embeddings; published configs carry BERT's value of this key.
        c.skip(&["position_embedding_type", "global_attn_every_n_layers"]);
        d.embedding_norm = true;
        d.norm = if bias("norm_bias") { NormKind::Layer } else { NormKind::LayerWeight };
        d.placement = NormPlacement::Pre;
        d.first_norm = false;
        d.final_norm = true;
        d.epsilon = c.number(&["norm_eps"], 1e-5);
        d.gated = true;
        d.activate(c, &["hidden_activation"], "gelu")?;
        let (attention, mlp) = (bias("attention_bias"), bias("mlp_bias"));
        d.biases = Biases { qkv: attention, output: attention, up: mlp, down: mlp, ..Biases::NONE };
        let window = Some(c.size(&["local_attention"]).unwrap_or(128) / 2);
        let rope =
            |kind: &str, key: &str, theta: f64| Rope::read(c, kind, (key, theta), d.head_dim, d.max_length);
        d.global.rope = Some(rope("full_attention", "global_rope_theta", 160_000.0)?);
        let local = Some(rope("sliding_attention", "local_rope_theta", 10_000.0)?);
        d.local = Some(AttentionWindow { before: window, after: window, rope: local });
        let every = c.size(&["global_attn_every_n_layers"]).unwrap_or(3);
        d.layer_pattern =
            LayerPattern::listed(c, d.layers)?.unwrap_or(LayerPattern::AllBut { every, first: 0 });
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "model.", "0.auto_model."],
        token_embeddings: &["embeddings.tok_embeddings.weight"],
        embedding_norm: &["embeddings.norm"],
        qkv: &[TensorLayout::Stacked(&["layers.{}.attn.Wqkv"])],
        output: &["layers.{}.attn.Wo"],
        attention_norms: [&["layers.{}.attn_norm"], &[]],
        up: &[TensorLayout::Stacked(&["layers.{}.mlp.Wi"])],
        down: &["layers.{}.mlp.Wo"],
        output_norms: [&["layers.{}.mlp_norm"], &[]],
        final_norm: "final_norm",
        ..names::BERT
    },
};
