//! DeBERTa: post-norm encoder with disentangled attention. v3 has the architecture of v2.

use super::encoder::{absolute_positions, post_norm};
use super::family::Family;
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{Description, RelativePositions};
use crate::positional::disentangled::DisentangledAttention;
use crate::tensor_names::{TensorLayout, TensorNames};

fn describe(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    c.require_off(&["talking_head", "conv_kernel_size", "is_decoder"])?;
    c.require_one_of("embedding_size", &[d.hidden.into()])?;
    c.require_one_of("attention_head_size", &[d.head_dim.into()])?;
    post_norm(c, d)?;
    d.token_types = c.size(&["type_vocab_size"]).unwrap_or(0);
    d.epsilon = c.number(&["layer_norm_eps"], 1e-7);
    if c.flag("position_biased_input", true) {
        absolute_positions(d);
    }
    c.skip(&["pos_att_type", "max_relative_positions", "position_buckets", "norm_rel_ebd", "share_att_key"]);
    if !c.flag("relative_attention", false) {
        return Ok(());
    }
    let kinds = c.get("pos_att_type");
    let words = kinds.as_array().into_iter().flatten().filter_map(|kind| kind.as_str());
    let words: Vec<&str> = words.chain(kinds.as_str().into_iter().flat_map(|all| all.split('|'))).collect();
    let has = |name: &str| words.iter().any(|word| word.trim() == name);
    let (c2p, p2c) = (has("c2p"), has("p2c"));
    let factor = 1 + u32::from(c2p) + u32::from(p2c);
    d.scale = 1.0 / (d.head_dim as f64 * f64::from(factor)).sqrt();
    let max_distance = c.get("max_relative_positions").as_u64().filter(|&distance| distance > 0);
    let max_distance = max_distance.map_or(d.max_length, |distance| distance as usize);
    let buckets = c.size(&["position_buckets"]).filter(|&buckets| buckets > 1);
    d.relative_positions = Some(RelativePositions::Disentangled(DisentangledAttention {
        pos_ebd_size: buckets.unwrap_or(max_distance),
        buckets,
        max_distance,
        c2p,
        p2c,
        norm_embeddings: c.string(&["norm_rel_ebd"], "none").contains("layer_norm"),
        share_att_key: c.flag("share_att_key", false),
    }));
    Ok(())
}

const NAMES: TensorNames = TensorNames {
    prefixes: &["", "deberta.", "model.", "0.auto_model."],
    relative: "encoder.rel_embeddings.weight",
    relative_norm: "encoder.LayerNorm",
    ..names::BERT
};

/// DeBERTa.
pub(super) const DEBERTA: Family = Family {
    name: "DeBERTa",
    model_types: &["deberta"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "deberta-base and what is made of it",
    goldens: &["tiny-deberta"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_off(&["position_buckets", "share_att_key", "norm_rel_ebd"])?;
        describe(c, d)
    },
    names: TensorNames {
        qkv: &[TensorLayout::PerHead("encoder.layer.{}.attention.self.in_proj")],
        qkv_bias: Some([
            "encoder.layer.{}.attention.self.q_bias",
            "",
            "encoder.layer.{}.attention.self.v_bias",
        ]),
        relative_projections: [
            "encoder.layer.{}.attention.self.pos_proj",
            "encoder.layer.{}.attention.self.pos_q_proj",
        ],
        ..NAMES
    },
};

/// DeBERTa v2 and v3.
pub(super) const DEBERTA_V2: Family = Family {
    name: "DeBERTa v2, v3",
    model_types: &["deberta-v2"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "deberta-v3-*, mDeBERTa, mxbai-rerank-*-v1",
    goldens: &["tiny-deberta-v2", "tiny-deberta-v3"],
    generation_goldens: &[],
    describe,
    names: TensorNames {
        qkv: &[TensorLayout::Stacked(&[
            "encoder.layer.{}.attention.self.query_proj",
            "encoder.layer.{}.attention.self.key_proj",
            "encoder.layer.{}.attention.self.value_proj",
        ])],
        relative_projections: [
            "encoder.layer.{}.attention.self.pos_key_proj",
            "encoder.layer.{}.attention.self.pos_query_proj",
        ],
        ..NAMES
    },
};
