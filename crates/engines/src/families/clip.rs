//! CLIP's text model: pre-norm, causal, learned absolute positions.

use super::encoder::absolute_positions;
use super::family::Family;
use super::names;
use crate::description::{Biases, NormKind, NormPlacement};
use crate::tensor_names::{TensorLayout, TensorNames};

/// CLIP's text model.
pub(super) const CLIP: Family = Family {
    name: "CLIP text",
    model_types: &["clip_text_model", "clip"],
    condition: None,
    nested_config: Some("text_config"),
    default_sizes: &[],
    examples: "clip-vit-base-patch32, clip-vit-large-patch14",
    goldens: &["tiny-clip"],
    generation_goldens: &[],
    describe: |c, d| {
        absolute_positions(d);
        d.norm = NormKind::Layer;
        d.placement = NormPlacement::Pre;
        d.final_norm = true;
        d.epsilon = c.number(&["layer_norm_eps"], 1e-5);
        d.biases = Biases::ALL;
        d.global.after = Some(0);
        d.activate(c, &["hidden_act"], "quick_gelu")
    },
    names: TensorNames {
        prefixes: &["", "text_model.", "model.text_model.", "0.auto_model.text_model.", "clip.text_model."],
        token_embeddings: &["embeddings.token_embedding.weight"],
        position_embeddings: "embeddings.position_embedding.weight",
        embedding_norm: &[],
        qkv: &[TensorLayout::Stacked(&[
            "encoder.layers.{}.self_attn.q_proj",
            "encoder.layers.{}.self_attn.k_proj",
            "encoder.layers.{}.self_attn.v_proj",
        ])],
        output: &["encoder.layers.{}.self_attn.out_proj"],
        attention_norms: [&["encoder.layers.{}.layer_norm1"], &[]],
        up: &[TensorLayout::Stacked(&["encoder.layers.{}.mlp.fc1"])],
        down: &["encoder.layers.{}.mlp.fc2"],
        output_norms: [&["encoder.layers.{}.layer_norm2"], &[]],
        final_norm: "final_layer_norm",
        ..names::BERT
    },
};
