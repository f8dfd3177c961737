//! GTE's new encoder: post-norm with rotary embeddings and a gated feed-forward block.

use super::encoder::post_norm;
use super::family::Family;
use super::names;
use crate::description::Biases;
use crate::positional::rope::Rope;
use crate::tensor_names::{TensorLayout, TensorNames};

/// GTE, as published (`new`) and as in transformers (`gte`).
pub(super) const GTE: Family = Family {
    name: "GTE (new)",
    model_types: &["new", "gte"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "gte-base-en-v1.5, gte-large-en-v1.5, gte-multilingual-base, -reranker-base, snowflake-arctic-embed-m-v2.0",
    goldens: &["tiny-gte"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_off(&["is_decoder", "logn_attention_scale", "logn_attention_clip1"])?;
        c.require_one_of("position_embedding_type", &["rope".into()])?;
        c.require_one_of("layer_norm_type", &["layer_norm".into()])?;
        c.require_one_of("head_dim", &[d.head_dim.into()])?;
        post_norm(c, d)?;
        d.token_types = c.size(&["type_vocab_size"]).unwrap_or(1);
        d.gated = true;
        d.biases = Biases { up: false, ..Biases::ALL };
        d.global.rope = Some(Rope::read(c, "", ("rope_theta", 10_000.0), d.head_dim, d.max_length)?);
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "new.", "gte.", "model.", "0.auto_model."],
        qkv: &[
            TensorLayout::Stacked(&["encoder.layer.{}.attention.qkv_proj"]),
            TensorLayout::Stacked(&[
                "encoder.layer.{}.attention.q_proj",
                "encoder.layer.{}.attention.k_proj",
                "encoder.layer.{}.attention.v_proj",
            ]),
            TensorLayout::Stacked(&[
                "layers.{}.self_attn.q_proj",
                "layers.{}.self_attn.k_proj",
                "layers.{}.self_attn.v_proj",
            ]),
        ],
        output: &["encoder.layer.{}.attention.o_proj", "layers.{}.self_attn.o_proj"],
        attention_norms: [&[], &["encoder.layer.{}.attn_ln", "layers.{}.post_attention_layernorm"]],
        up: &[
            TensorLayout::Swapped("encoder.layer.{}.mlp.up_gate_proj"),
            TensorLayout::Stacked(&["layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"]),
        ],
        down: &["encoder.layer.{}.mlp.down_proj", "layers.{}.mlp.down_proj"],
        output_norms: [&[], &["encoder.layer.{}.mlp_ln", "layers.{}.post_mlp_layernorm"]],
        ..names::BERT
    },
};
