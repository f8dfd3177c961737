//! Decoders with layer norms: GPT-NeoX, Falcon and StableLM. Attention and feed-forward block read the same input if the
//! config says so (parallel attention).

use super::family::Family;
use super::llama::LLAMA;
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{Biases, Description, NormKind, NormPlacement};
use crate::positional::rope::Rope;
use crate::tensor_names::{TensorLayout, TensorNames};

/// Pre-norm with layer norms, causal, and a rotary embedding of a part of each head. `rope` has the keys of its base and of
/// the rotated share, and the default share.
pub(super) fn parallel_decoder(
    c: &Config<'_>,
    d: &mut Description,
    rope: (&str, &str, f64),
) -> Result<(), Unsupported> {
    let (theta, share, default) = rope;
    d.norm = NormKind::Layer;
    d.placement = NormPlacement::Pre;
    d.final_norm = true;
    d.epsilon = c.number(&["layer_norm_eps", "layer_norm_epsilon"], 1e-5);
    d.global.after = Some(0);
    let (theta, share) = ((theta, 10_000.0), (share, default));
    d.global.rope = Some(Rope::read_partial(c, "", theta, share, d.head_dim, d.max_length)?);
    Ok(())
}

/// StableLM.
pub(super) const STABLELM: Family = Family {
    name: "StableLM",
    model_types: &["stablelm"],
    examples: "stablelm-2-1_6b-chat, stablelm-zephyr-3b",
    goldens: &[],
    generation_goldens: &["tiny-stablelm-generate", "tiny-stablelm-parallel-generate"],
    describe: |c, d| {
        c.require_off(&["qk_layernorm"])?;
        parallel_decoder(c, d, ("rope_theta", "partial_rotary_factor", 0.25))?;
        d.kv_heads = c.size(&["num_key_value_heads"]).unwrap_or(d.heads);
        d.parallel = c.flag("use_parallel_residual", false);
        d.gated = true;
        d.activate(c, &["hidden_act"], "silu")?;
        d.biases = Biases { qkv: c.flag("use_qkv_bias", false), ..Biases::NONE };
        Ok(())
    },
    names: TensorNames {
        output_norms: [&["layers.{}.post_attention_layernorm", "layers.{}.input_layernorm"], &[]],
        ..names::LLAMA
    },
    ..LLAMA
};

/// Falcon with rotary embeddings.
pub(super) const FALCON: Family = Family {
    name: "Falcon",
    model_types: &["falcon"],
    examples: "falcon-7b-instruct, falcon-40b-instruct",
    goldens: &[],
    generation_goldens: &["tiny-falcon-generate", "tiny-falcon-new-generate"],
    describe: |c, d| {
        c.require_off(&["alibi"])?;
        // The first configs have no maximum length.
        d.max_length = if d.max_length == 0 { 2048 } else { d.max_length };
        parallel_decoder(c, d, ("rope_theta", "partial_rotary_factor", 1.0))?;
        let grouped = c.flag("new_decoder_architecture", false);
        let kv_heads = c.size(&["num_kv_heads"]).unwrap_or(d.heads);
        d.kv_heads = match (grouped, c.flag("multi_query", true)) {
            (true, _) => kv_heads,
            (false, true) => 1,
            (false, false) => d.heads,
        };
        // The new architecture always adds both blocks to the same input.
        d.parallel = c.flag("parallel_attn", true) || grouped;
        c.require_one_of("num_ln_in_parallel_attn", &[if grouped { 2 } else { 1 }.into(), 1.into()])?;
        d.intermediate = if d.intermediate == 0 { 4 * d.hidden } else { d.intermediate };
        d.activate(c, &["activation"], "gelu")?;
        d.biases = if c.flag("bias", false) { Biases::ALL } else { Biases::NONE };
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "transformer."],
        token_embeddings: &["word_embeddings.weight"],
        qkv: &[
            TensorLayout::PerHead("h.{}.self_attention.query_key_value"),
            TensorLayout::Stacked(&["h.{}.self_attention.qkv"]),
        ],
        output: &["h.{}.self_attention.dense"],
        up: &[TensorLayout::Stacked(&["h.{}.mlp.dense_h_to_4h"])],
        down: &["h.{}.mlp.dense_4h_to_h"],
        attention_norms: [&["h.{}.ln_attn", "h.{}.input_layernorm"], &[]],
        output_norms: [&["h.{}.post_attention_layernorm", "h.{}.ln_mlp", "h.{}.input_layernorm"], &[]],
        final_norm: "ln_f",
        ..names::LLAMA
    },
    ..LLAMA
};

/// GPT-NeoX.
pub(super) const GPT_NEOX: Family = Family {
    name: "GPT-NeoX",
    model_types: &["gpt_neox"],
    examples: "pythia-160m, gpt-neox-20b",
    goldens: &[],
    generation_goldens: &["tiny-gpt-neox-generate", "tiny-gpt-neox-serial-generate"],
    describe: |c, d| {
        parallel_decoder(c, d, ("rotary_emb_base", "rotary_pct", 0.25))?;
        d.parallel = c.flag("use_parallel_residual", true);
        d.activate(c, &["hidden_act"], "gelu")?;
        let attention = c.flag("attention_bias", true);
        d.biases = Biases { qkv: attention, output: attention, ..Biases::ALL };
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "gpt_neox."],
        token_embeddings: &["embed_in.weight"],
        qkv: &[
            TensorLayout::PerHead("layers.{}.attention.query_key_value"),
            TensorLayout::Stacked(&["layers.{}.attention.qkv"]),
        ],
        output: &["layers.{}.attention.dense"],
        up: &[TensorLayout::Stacked(&["layers.{}.mlp.dense_h_to_4h"])],
        down: &["layers.{}.mlp.dense_4h_to_h"],
        final_norm: "final_layer_norm",
        ignored: &["rotary_emb.inv_freq", "attention.bias", "attention.masked_bias"],
        ..names::LLAMA
    },
    ..LLAMA
};
