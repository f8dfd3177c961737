//! Nomic-BERT: post-norm encoder with rotary embeddings and a gated feed-forward block.

use super::encoder::post_norm;
use super::family::Family;
use super::names;
use crate::description::Biases;
use crate::positional::rope::Rope;
use crate::tensor_names::{TensorLayout, TensorNames};

/// Nomic-BERT v1 and v1.5, as published and as in transformers.
pub(super) const NOMIC: Family = Family {
    name: "Nomic-BERT (v1, v1.5)",
    model_types: &["nomic_bert"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "nomic-embed-text-v1, nomic-embed-text-v1.5",
    goldens: &["tiny-nomic"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_off(&[
            "prenorm",
            "use_rms_norm",
            "parallel_block",
            "causal",
            "num_experts",
            "moe_every_n_layers",
        ])?;
        c.require_off(&["rotary_emb_scale_base", "use_xentropy_bias"])?;
        c.require_one_of("rotary_emb_fraction", &[1.into(), 1.0.into()])?;
        c.require_one_of("scale_attn_weights", &[true.into()])?;
        c.require_one_of("head_dim", &[d.head_dim.into()])?;
        post_norm(c, d)?;
        d.token_types = c.size(&["type_vocab_size"]).unwrap_or(2);
        d.gated = true;
        d.activate(c, &["activation_function", "hidden_act"], "silu")?;
        let mlp = c.flag("mlp_fc1_bias", false);
        let qkv = c.flag("qkv_proj_bias", false);
        d.biases = Biases { qkv, output: qkv, up: mlp, down: c.flag("mlp_fc2_bias", false), ..Biases::NONE };
        // Beyond the trained positions, dynamic NTK scaling would change the base with the sequence length.
        if !c.get("rotary_scaling_factor").is_null() {
            d.max_length = d.max_length.min(c.size(&["max_trained_positions"]).unwrap_or(2048));
        }
        let rope = Rope::read(c, "", ("rotary_emb_base", 1000.0), d.head_dim, d.max_length)?;
        d.global.rope = Some(Rope { interleaved: c.flag("rotary_emb_interleaved", false), ..rope });
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "nomic_bert.", "bert.", "model.", "0.auto_model."],
        embedding_norm: &["embeddings.LayerNorm", "emb_ln"],
        qkv: &[
            TensorLayout::Stacked(&["encoder.layers.{}.attn.Wqkv"]),
            TensorLayout::Stacked(&[
                "layers.{}.self_attn.q_proj",
                "layers.{}.self_attn.k_proj",
                "layers.{}.self_attn.v_proj",
            ]),
        ],
        output: &["encoder.layers.{}.attn.out_proj", "layers.{}.self_attn.o_proj"],
        attention_norms: [&[], &["encoder.layers.{}.norm1", "layers.{}.post_attention_layernorm"]],
        up: &[
            TensorLayout::Stacked(&["encoder.layers.{}.mlp.fc12", "encoder.layers.{}.mlp.fc11"]),
            TensorLayout::Stacked(&["layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"]),
        ],
        down: &["encoder.layers.{}.mlp.fc2", "layers.{}.mlp.down_proj"],
        output_norms: [&[], &["encoder.layers.{}.norm2", "layers.{}.post_mlp_layernorm"]],
        ignored: &["rotary_emb.inv_freq"],
        ..names::BERT
    },
};
