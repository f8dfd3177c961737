//! Tensor names of GGUF architectures, and the names of the same tensors on the hub.

/// Name in a GGUF file and name on the hub, without `.weight` and `.bias`.
type Pair = (&'static str, &'static str);

/// Tensor names of an architecture. `{}` stands for the layer index.
pub(super) struct Names {
    /// Values of `general.architecture`.
    pub(super) architectures: &'static [&'static str],
    tensors: &'static [&'static [Pair]],
    /// How the values differ from those on the hub.
    pub(super) convention: Convention,
}

/// How the values of an architecture's tensors differ from those on the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convention {
    /// They do not.
    Same,
    /// The rows of query and key projections are permuted, so that rotary pairs are adjacent.
    AdjacentPairs,
    /// The weights of norms include the one that the hub's model adds.
    NormsPlusOne,
}

const BERT: Names = Names {
    architectures: &["bert"],
    tensors: &[&[
        ("token_embd", "embeddings.word_embeddings"),
        ("position_embd", "embeddings.position_embeddings"),
        ("token_types", "embeddings.token_type_embeddings"),
        ("token_embd_norm", "embeddings.LayerNorm"),
        ("blk.{}.attn_q", "encoder.layer.{}.attention.self.query"),
        ("blk.{}.attn_k", "encoder.layer.{}.attention.self.key"),
        ("blk.{}.attn_v", "encoder.layer.{}.attention.self.value"),
        ("blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"),
        ("blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"),
        ("blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"),
        ("blk.{}.ffn_down", "encoder.layer.{}.output.dense"),
        ("blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"),
    ]],
    convention: Convention::Same,
};

const NOMIC_BERT: Names = Names {
    architectures: &["nomic-bert"],
    tensors: &[&[
        ("token_embd", "embeddings.word_embeddings"),
        ("token_types", "embeddings.token_type_embeddings"),
        ("token_embd_norm", "emb_ln"),
        ("blk.{}.attn_qkv", "encoder.layers.{}.attn.Wqkv"),
        ("blk.{}.attn_output", "encoder.layers.{}.attn.out_proj"),
        ("blk.{}.attn_output_norm", "encoder.layers.{}.norm1"),
        ("blk.{}.ffn_gate", "encoder.layers.{}.mlp.fc12"),
        ("blk.{}.ffn_up", "encoder.layers.{}.mlp.fc11"),
        ("blk.{}.ffn_down", "encoder.layers.{}.mlp.fc2"),
        ("blk.{}.layer_output_norm", "encoder.layers.{}.norm2"),
    ]],
    convention: Convention::Same,
};

/// Tensors that all decoders have.
const DECODER: &[Pair] = &[
    ("token_embd", "embed_tokens"),
    ("output", "lm_head"),
    ("output_norm", "norm"),
    ("blk.{}.attn_norm", "layers.{}.input_layernorm"),
    ("blk.{}.attn_q", "layers.{}.self_attn.q_proj"),
    ("blk.{}.attn_k", "layers.{}.self_attn.k_proj"),
    ("blk.{}.attn_v", "layers.{}.self_attn.v_proj"),
    ("blk.{}.attn_q_norm", "layers.{}.self_attn.q_norm"),
    ("blk.{}.attn_k_norm", "layers.{}.self_attn.k_norm"),
    ("blk.{}.attn_output", "layers.{}.self_attn.o_proj"),
    ("blk.{}.ffn_gate", "layers.{}.mlp.gate_proj"),
    ("blk.{}.ffn_up", "layers.{}.mlp.up_proj"),
    ("blk.{}.ffn_down", "layers.{}.mlp.down_proj"),
];

const QWEN: Names =
    Names { architectures: &["qwen2", "qwen3"], tensors: &[DECODER, NORM], convention: Convention::Same };

/// The norm before the feed-forward block.
const NORM: &[Pair] = &[("blk.{}.ffn_norm", "layers.{}.post_attention_layernorm")];

const QWEN3_MOE: Names = Names {
    architectures: &["qwen3moe"],
    tensors: &[
        DECODER,
        NORM,
        &[
            ("blk.{}.ffn_gate_inp", "layers.{}.mlp.gate"),
            ("blk.{}.ffn_gate_exps", "layers.{}.mlp.experts.{e}.gate_proj"),
            ("blk.{}.ffn_up_exps", "layers.{}.mlp.experts.{e}.up_proj"),
            ("blk.{}.ffn_down_exps", "layers.{}.mlp.experts.{e}.down_proj"),
        ],
    ],
    convention: Convention::Same,
};

const LLAMA: Names = Names {
    architectures: &["llama", "smollm3"],
    tensors: &[DECODER, NORM, MIXTRAL],
    convention: Convention::AdjacentPairs,
};

/// Experts of Mixtral, whose files are of the architecture `llama`.
const MIXTRAL: &[Pair] = &[
    ("blk.{}.ffn_gate_inp", "layers.{}.block_sparse_moe.gate"),
    ("blk.{}.ffn_gate_exps", "layers.{}.block_sparse_moe.experts.{e}.w1"),
    ("blk.{}.ffn_up_exps", "layers.{}.block_sparse_moe.experts.{e}.w3"),
    ("blk.{}.ffn_down_exps", "layers.{}.block_sparse_moe.experts.{e}.w2"),
];

const GEMMA: Names = Names { architectures: &["gemma"], convention: Convention::NormsPlusOne, ..QWEN };

/// Fused projections, which only Phi has under these names.
const FUSED: &[Pair] = &[("blk.{}.attn_qkv", "layers.{}.self_attn.qkv_proj")];

const PHI3: Names = Names {
    architectures: &["phi3"],
    tensors: &[
        FUSED,
        &[
            ("blk.{}.ffn_norm", "layers.{}.post_attention_layernorm"),
            ("blk.{}.ffn_up", "layers.{}.mlp.gate_up_proj"),
        ],
        DECODER,
    ],
    convention: Convention::Same,
};

const PHI2: Names = Names {
    architectures: &["phi2"],
    tensors: &[
        FUSED,
        &[
            ("output_norm", "final_layernorm"),
            ("blk.{}.attn_output", "layers.{}.self_attn.dense"),
            ("blk.{}.ffn_up", "layers.{}.mlp.fc1"),
            ("blk.{}.ffn_down", "layers.{}.mlp.fc2"),
        ],
        DECODER,
    ],
    convention: Convention::Same,
};

const STABLELM: Names = Names { architectures: &["stablelm"], ..QWEN };

const FALCON: Names = Names {
    architectures: &["falcon"],
    tensors: &[&[
        ("token_embd", "word_embeddings"),
        ("output", "lm_head"),
        ("output_norm", "ln_f"),
        ("blk.{}.attn_norm", "h.{}.input_layernorm"),
        // With two norms, this one is that of attention, and the other one that of the feed-forward block.
        ("blk.{}.attn_norm_2", "h.{}.ln_attn"),
        ("blk.{}.attn_qkv", "h.{}.self_attention.qkv"),
        ("blk.{}.attn_output", "h.{}.self_attention.dense"),
        ("blk.{}.ffn_up", "h.{}.mlp.dense_h_to_4h"),
        ("blk.{}.ffn_down", "h.{}.mlp.dense_4h_to_h"),
    ]],
    convention: Convention::Same,
};

const GPT_NEOX: Names = Names {
    architectures: &["gptneox"],
    tensors: &[&[
        ("token_embd", "embed_in"),
        ("output", "embed_out"),
        ("output_norm", "final_layer_norm"),
        ("blk.{}.attn_norm", "layers.{}.input_layernorm"),
        ("blk.{}.attn_qkv", "layers.{}.attention.qkv"),
        ("blk.{}.attn_output", "layers.{}.attention.dense"),
        ("blk.{}.ffn_norm", "layers.{}.post_attention_layernorm"),
        ("blk.{}.ffn_up", "layers.{}.mlp.dense_h_to_4h"),
        ("blk.{}.ffn_down", "layers.{}.mlp.dense_4h_to_h"),
    ]],
    convention: Convention::Same,
};

const GEMMA3: Names = Names {
    architectures: &["gemma2", "gemma3", "gemma-embedding"],
    tensors: &[
        DECODER,
        &[
            ("blk.{}.post_attention_norm", "layers.{}.post_attention_layernorm"),
            ("blk.{}.ffn_norm", "layers.{}.pre_feedforward_layernorm"),
            ("blk.{}.post_ffw_norm", "layers.{}.post_feedforward_layernorm"),
        ],
    ],
    convention: Convention::NormsPlusOne,
};

/// All architectures.
pub(super) const ALL: [&Names; 12] = [
    &BERT,
    &NOMIC_BERT,
    &QWEN,
    &LLAMA,
    &GEMMA,
    &GEMMA3,
    &PHI3,
    &PHI2,
    &STABLELM,
    &FALCON,
    &GPT_NEOX,
    &QWEN3_MOE,
];

/// Tensors of rotary factors. They are part of the config, and keep their names.
pub(super) const ROTARY_FACTORS: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// The names of an architecture.
pub(super) fn of(architecture: &str) -> Option<&'static Names> {
    ALL.into_iter().find(|names| names.architectures.contains(&architecture))
}

/// The architectures whose tensors are known, for messages.
pub(super) fn known() -> String {
    ALL.iter().flat_map(|names| names.architectures).copied().collect::<Vec<_>>().join(", ")
}

impl Names {
    /// The hub's name of a tensor.
    pub(super) fn on_hub(&self, name: &str) -> Option<String> {
        let is_encoder = self.architectures.iter().all(|name| name.ends_with("bert"));
        if ROTARY_FACTORS.contains(&name) && !is_encoder {
            return Some(name.to_owned());
        }
        let (stem, part) = name.rsplit_once('.').filter(|(_, part)| ["weight", "bias"].contains(part))?;
        let (pattern, layer) = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => (format!("blk.{{}}.{rest}"), Some(layer.parse::<usize>().ok()?)),
            None => (stem.to_owned(), None),
        };
        let (_, hub) = self.tensors.iter().copied().flatten().find(|(own, _)| *own == pattern)?;
        let hub = layer.map_or_else(|| (*hub).to_owned(), |layer| hub.replace("{}", &layer.to_string()));
        Some(format!("{hub}.{part}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_their_names_of_the_hub() {
        let bert = of("bert").expect("known");
        assert_eq!(bert.on_hub("token_embd.weight").as_deref(), Some("embeddings.word_embeddings.weight"));
        let query = bert.on_hub("blk.11.attn_q.bias");
        assert_eq!(query.as_deref(), Some("encoder.layer.11.attention.self.query.bias"));
        for name in ["blk.0.attn_q.scale", "blk.x.attn_q.weight", "attn_q.weight", "blk.0.attn_rot", "output"]
        {
            assert_eq!(bert.on_hub(name), None, "{name}");
        }
        assert!(of("mamba").is_none());
    }
}
