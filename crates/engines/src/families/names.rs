//! What weights are called. `{}` stands for the layer; of several names the first that a file has is taken.

/// What the weights of a family are called.
#[derive(Debug)]
pub struct Names {
    /// What may stand before every name.
    pub prefixes: &'static [&'static str],
    /// The token table, under which name the prefix is found out.
    pub words: &'static [&'static str],
    /// The position table.
    pub positions: &'static str,
    /// The token type table.
    pub types: &'static str,
    /// The norm after the embeddings.
    pub embedding_norm: &'static [&'static str],
    /// Queries, keys and values.
    pub qkv: &'static [Form],
    /// Their biases, where they are not called as the matrices are; an empty name stands for zeros.
    pub qkv_bias: Option<[&'static str; 3]>,
    /// The norms of queries and keys.
    pub head_norms: [&'static str; 2],
    /// What follows attention.
    pub output: &'static [&'static str],
    /// The feed-forward part, widening: the gate first where there is one.
    pub up: &'static [Form],
    /// The feed-forward part, narrowing.
    pub down: &'static [&'static str],
    /// The norms before and after attention.
    pub attention_norms: [&'static [&'static str]; 2],
    /// The norms before and after the feed-forward part.
    pub output_norms: [&'static [&'static str]; 2],
    /// The norm after all layers.
    pub final_norm: &'static str,
    /// The table of biases by distance, or of distances.
    pub relative: &'static str,
    /// The norm of the table of distances.
    pub relative_norm: &'static str,
    /// What projects distances to keys and to queries.
    pub places: [&'static str; 2],
    /// Parts of names that layers have and embedding does not use.
    pub unused: &'static [&'static str],
}

/// A matrix of several parts, as files have it.
#[derive(Debug)]
pub enum Form {
    /// Tensors one upon the other.
    Stacked(&'static [&'static str]),
    /// One tensor whose two halves stand the other way round.
    Swapped(&'static str),
    /// One tensor with the queries, keys and values of the first head, then of the next.
    ByHead(&'static str),
}

/// The names of BERT, from which others differ in places.
pub(super) const BERT: Names = Names {
    prefixes: &["", "bert.", "roberta.", "model.", "0.auto_model."],
    words: &["embeddings.word_embeddings.weight"],
    positions: "embeddings.position_embeddings.weight",
    types: "embeddings.token_type_embeddings.weight",
    embedding_norm: &["embeddings.LayerNorm"],
    qkv: &[Form::Stacked(&[
        "encoder.layer.{}.attention.self.query",
        "encoder.layer.{}.attention.self.key",
        "encoder.layer.{}.attention.self.value",
    ])],
    qkv_bias: None,
    head_norms: ["", ""],
    output: &["encoder.layer.{}.attention.output.dense"],
    up: &[Form::Stacked(&["encoder.layer.{}.intermediate.dense"])],
    down: &["encoder.layer.{}.output.dense"],
    attention_norms: [&[], &["encoder.layer.{}.attention.output.LayerNorm"]],
    output_norms: [&[], &["encoder.layer.{}.output.LayerNorm"]],
    final_norm: "",
    relative: "",
    relative_norm: "",
    places: ["", ""],
    unused: &[],
};

/// The names of decoders, after Llama.
pub(super) const LLAMA: Names = Names {
    prefixes: &["", "model.", "language_model.", "model.language_model.", "0.auto_model."],
    words: &["embed_tokens.weight"],
    embedding_norm: &[],
    qkv: &[
        Form::Stacked(&[
            "layers.{}.self_attn.q_proj",
            "layers.{}.self_attn.k_proj",
            "layers.{}.self_attn.v_proj",
        ]),
        Form::Stacked(&["layers.{}.self_attn.qkv_proj"]),
    ],
    head_norms: ["layers.{}.self_attn.q_norm", "layers.{}.self_attn.k_norm"],
    output: &["layers.{}.self_attn.o_proj"],
    up: &[
        Form::Stacked(&["layers.{}.mlp.gate_proj", "layers.{}.mlp.up_proj"]),
        Form::Stacked(&["layers.{}.mlp.gate_up_proj"]),
    ],
    down: &["layers.{}.mlp.down_proj"],
    attention_norms: [&["layers.{}.input_layernorm"], &[]],
    output_norms: [&["layers.{}.post_attention_layernorm"], &[]],
    final_norm: "norm",
    unused: &["rotary_emb.inv_freq"],
    ..BERT
};
