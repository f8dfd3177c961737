//! GTE's new encoder: BERT with rotation and a gated feed-forward part.

use super::{Family, Form, Names, bert, names};
use crate::description::Biases;
use crate::parts::rope::Rope;

/// GTE, as published (`new`) and as transformers has it (`gte`).
pub(super) const GTE: Family = Family {
    name: "GTE (new)",
    model_types: &["new", "gte"],
    known_as: "gte-base-en-v1.5, gte-large-en-v1.5, gte-multilingual-base, -reranker-base, snowflake-arctic-embed-m-v2.0",
    goldens: &["tiny-gte"],
    describe: |c, d| {
        c.none_of(&["is_decoder", "logn_attention_scale", "logn_attention_clip1"])?;
        c.only("position_embedding_type", &["rope".into()])?;
        c.only("layer_norm_type", &["layer_norm".into()])?;
        c.only("head_dim", &[d.head.into()])?;
        d.positions = None;
        d.types = c.size(&["type_vocab_size"]).unwrap_or(1);
        d.gated = true;
        d.biases = Biases { up: false, ..Biases::ALL };
        d.global.rope = Some(Rope::read(c, "", ("rope_theta", 10_000.0), d.head, d.longest)?);
        Ok(())
    },
    names: Names {
        prefixes: &["", "new.", "gte.", "model.", "0.auto_model."],
        qkv: &[
            Form::Stacked(&["encoder.layer.{}.attention.qkv_proj"]),
            Form::Stacked(&[
                "encoder.layer.{}.attention.q_proj",
                "encoder.layer.{}.attention.k_proj",
                "encoder.layer.{}.attention.v_proj",
            ]),
            Form::Stacked(&[
                "layers.{}.self_attn.q_proj",
                "layers.{}.self_attn.k_proj",
                "layers.{}.self_attn.v_proj",
            ]),
        ],
        output: &["encoder.layer.{}.attention.o_proj", "layers.{}.self_attn.o_proj"],
        attention_norms: [&[], &["encoder.layer.{}.attn_ln", "layers.{}.post_attention_layernorm"]],
        up: &[
            Form::Swapped("encoder.layer.{}.mlp.up_gate_proj"),
            Form::Stacked(&["layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"]),
        ],
        down: &["encoder.layer.{}.mlp.down_proj", "layers.{}.mlp.down_proj"],
        output_norms: [&[], &["encoder.layer.{}.mlp_ln", "layers.{}.post_mlp_layernorm"]],
        ..names::BERT
    },
    ..bert::BERT
};
