//! Tensor names that several families share.

use crate::tensor_names::{TensorLayout, TensorNames};

/// Tensor names of BERT.
pub(super) const BERT: TensorNames = TensorNames {
    prefixes: &["", "bert.", "roberta.", "model.", "0.auto_model."],
    token_embeddings: &["embeddings.word_embeddings.weight"],
    position_embeddings: "embeddings.position_embeddings.weight",
    token_type_embeddings: "embeddings.token_type_embeddings.weight",
    embedding_norm: &["embeddings.LayerNorm"],
    qkv: &[TensorLayout::Stacked(&[
        "encoder.layer.{}.attention.self.query",
        "encoder.layer.{}.attention.self.key",
        "encoder.layer.{}.attention.self.value",
    ])],
    qkv_bias: None,
    qk_norms: ["", ""],
    output: &["encoder.layer.{}.attention.output.dense"],
    router: "",
    up: &[TensorLayout::Stacked(&["encoder.layer.{}.intermediate.dense"])],
    down: &["encoder.layer.{}.output.dense"],
    attention_norms: [&[], &["encoder.layer.{}.attention.output.LayerNorm"]],
    output_norms: [&[], &["encoder.layer.{}.output.LayerNorm"]],
    final_norm: "",
    relative: "",
    relative_norm: "",
    relative_projections: ["", ""],
    ignored: &[],
};

/// Tensor names of Llama.
pub(super) const LLAMA: TensorNames = TensorNames {
    prefixes: &[
        "",
        "model.",
        "language_model.",
        "language_model.model.",
        "model.language_model.",
        "0.auto_model.",
    ],
    token_embeddings: &["embed_tokens.weight"],
    embedding_norm: &[],
    qkv: &[
        TensorLayout::Stacked(&[
            "layers.{}.self_attn.q_proj",
            "layers.{}.self_attn.k_proj",
            "layers.{}.self_attn.v_proj",
        ]),
        TensorLayout::Stacked(&["layers.{}.self_attn.qkv_proj"]),
    ],
    qk_norms: ["layers.{}.self_attn.q_norm", "layers.{}.self_attn.k_norm"],
    output: &["layers.{}.self_attn.o_proj"],
    up: &[
        TensorLayout::Stacked(&["layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"]),
        TensorLayout::Stacked(&["layers.{}.mlp.gate_up_proj"]),
    ],
    down: &["layers.{}.mlp.down_proj"],
    attention_norms: [&["layers.{}.input_layernorm"], &[]],
    output_norms: [&["layers.{}.post_attention_layernorm"], &[]],
    final_norm: "norm",
    ignored: &["rotary_emb.inv_freq"],
    ..BERT
};
