//! DeBERTa: BERT whose attention keeps content and distance apart. v3 has the architecture of v2.

use super::{Family, Form, Names, bert, names};
use crate::config::{Config, Unfit};
use crate::description::{Description, Relative};
use crate::parts::disentangled::Disentangle;

fn describe(c: &Config<'_>, d: &mut Description) -> Result<(), Unfit> {
    c.none_of(&["talking_head", "conv_kernel_size", "is_decoder"])?;
    c.only("embedding_size", &[d.hidden.into()])?;
    c.only("attention_head_size", &[d.head.into()])?;
    d.types = c.size(&["type_vocab_size"]).unwrap_or(0);
    d.epsilon = c.number(&["layer_norm_eps"], 1e-7);
    if !c.flag("position_biased_input", true) {
        d.positions = None;
    }
    c.skip(&["pos_att_type", "max_relative_positions", "position_buckets", "norm_rel_ebd", "share_att_key"]);
    if !c.flag("relative_attention", false) {
        return Ok(());
    }
    let kinds = c.get("pos_att_type");
    let words = kinds.as_array().into_iter().flatten().filter_map(|kind| kind.as_str());
    let words: Vec<&str> = words.chain(kinds.as_str().into_iter().flat_map(|all| all.split('|'))).collect();
    let has = |name: &str| words.iter().any(|word| word.trim() == name);
    let (content_to_place, place_to_content) = (has("c2p"), has("p2c"));
    let factor = 1 + u32::from(content_to_place) + u32::from(place_to_content);
    d.scale = 1.0 / (d.head as f64 * f64::from(factor)).sqrt();
    let reach = c.get("max_relative_positions").as_u64().filter(|&reach| reach > 0);
    let max_distance = reach.map_or(d.longest, |reach| reach as usize);
    let buckets = c.size(&["position_buckets"]).filter(|&buckets| buckets > 1);
    d.relative = Some(Relative::Disentangled(Disentangle {
        span: buckets.unwrap_or(max_distance),
        buckets,
        max_distance,
        content_to_place,
        place_to_content,
        normed: c.word(&["norm_rel_ebd"], "none").contains("layer_norm"),
        shared: c.flag("share_att_key", false),
    }));
    Ok(())
}

const NAMES: Names = Names {
    prefixes: &["", "deberta.", "model.", "0.auto_model."],
    relative: "encoder.rel_embeddings.weight",
    relative_norm: "encoder.LayerNorm",
    ..names::BERT
};

/// DeBERTa.
pub(super) const DEBERTA: Family = Family {
    name: "DeBERTa",
    model_types: &["deberta"],
    known_as: "deberta-base and what is made of it",
    goldens: &["tiny-deberta"],
    describe: |c, d| {
        c.none_of(&["position_buckets", "share_att_key", "norm_rel_ebd"])?;
        describe(c, d)
    },
    names: Names {
        qkv: &[Form::ByHead("encoder.layer.{}.attention.self.in_proj")],
        qkv_bias: Some([
            "encoder.layer.{}.attention.self.q_bias",
            "",
            "encoder.layer.{}.attention.self.v_bias",
        ]),
        places: ["encoder.layer.{}.attention.self.pos_proj", "encoder.layer.{}.attention.self.pos_q_proj"],
        ..NAMES
    },
    ..bert::BERT
};

/// DeBERTa v2 and v3.
pub(super) const DEBERTA_V2: Family = Family {
    name: "DeBERTa v2, v3",
    model_types: &["deberta-v2"],
    known_as: "deberta-v3-*, mDeBERTa, mxbai-rerank-*-v1",
    goldens: &["tiny-deberta-v2", "tiny-deberta-v3"],
    describe,
    names: Names {
        qkv: &[Form::Stacked(&[
            "encoder.layer.{}.attention.self.query_proj",
            "encoder.layer.{}.attention.self.key_proj",
            "encoder.layer.{}.attention.self.value_proj",
        ])],
        places: [
            "encoder.layer.{}.attention.self.pos_key_proj",
            "encoder.layer.{}.attention.self.pos_query_proj",
        ],
        ..NAMES
    },
    ..bert::BERT
};
