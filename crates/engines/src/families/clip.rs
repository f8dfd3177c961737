//! CLIP's text tower: norms before, positions from a table, causal; the vector is that of the closing token.

use super::{Family, Form, Names, bert, names};
use crate::description::NormPlacement;

/// CLIP's text tower.
pub(super) const CLIP: Family = Family {
    name: "CLIP text",
    model_types: &["clip_text_model", "clip"],
    within: Some("text_config"),
    known_as: "clip-vit-base-patch32, clip-vit-large-patch14",
    goldens: &["tiny-clip"],
    describe: |c, d| {
        d.embedding_norm = false;
        d.placement = NormPlacement::Pre;
        d.final_norm = true;
        d.epsilon = c.number(&["layer_norm_eps"], 1e-5);
        d.global.after = Some(0);
        d.activate(c, &["hidden_act"], "quick_gelu")
    },
    names: Names {
        prefixes: &["", "text_model.", "model.text_model.", "0.auto_model.text_model.", "clip.text_model."],
        words: &["embeddings.token_embedding.weight"],
        positions: "embeddings.position_embedding.weight",
        embedding_norm: &[],
        qkv: &[Form::Stacked(&[
            "encoder.layers.{}.self_attn.q_proj",
            "encoder.layers.{}.self_attn.k_proj",
            "encoder.layers.{}.self_attn.v_proj",
        ])],
        output: &["encoder.layers.{}.self_attn.out_proj"],
        attention_norms: [&["encoder.layers.{}.layer_norm1"], &[]],
        up: &[Form::Stacked(&["encoder.layers.{}.mlp.fc1"])],
        down: &["encoder.layers.{}.mlp.fc2"],
        output_norms: [&["encoder.layers.{}.layer_norm2"], &[]],
        final_norm: "final_layer_norm",
        ..names::BERT
    },
    ..bert::BERT
};
