//! JinaBERT v2: BERT with a bias that falls with distance instead of positions, and a gated feed-forward part.

use super::{Family, Form, Names, bert, names};
use crate::config::Unfit;
use crate::description::{Biases, Relative};

/// JinaBERT v2.
pub(super) const JINA: Family = Family {
    name: "JinaBERT v2",
    when: Some(("position_embedding_type", "alibi")),
    known_as: "jina-embeddings-v2-small-en, jina-embeddings-v2-base-en, -de, -es, -zh, jina-reranker-v1-*",
    goldens: &["tiny-jina"],
    describe: |c, d| {
        c.none_of(&["is_decoder", "add_cross_attention"])?;
        if c.get("auto_map").to_string().contains("qk-post-norm") {
            return Err(Unfit("norms of queries and keys".to_owned()));
        }
        d.positions = None;
        d.types = c.size(&["type_vocab_size"]).unwrap_or(2);
        d.relative = Some(Relative::Slopes);
        let kind = c.word(&["feed_forward_type"], "original");
        d.gated = kind != "original";
        if d.gated {
            d.activate(c, &["feed_forward_type"], "geglu")?;
            d.biases = Biases { up: false, ..Biases::ALL };
        }
        Ok(())
    },
    names: Names {
        up: &[
            Form::Stacked(&["encoder.layer.{}.mlp.gated_layers"]),
            Form::Stacked(&["encoder.layer.{}.intermediate.dense"]),
        ],
        down: &["encoder.layer.{}.mlp.wo", "encoder.layer.{}.output.dense"],
        output_norms: [&[], &["encoder.layer.{}.mlp.layernorm", "encoder.layer.{}.output.LayerNorm"]],
        ..names::BERT
    },
    ..bert::BERT
};
