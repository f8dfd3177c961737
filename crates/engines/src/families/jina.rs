//! JinaBERT v2: post-norm encoder with ALiBi and a gated feed-forward block.

use super::encoder::post_norm;
use super::family::Family;
use super::names;
use crate::config::Unsupported;
use crate::description::{Biases, RelativePositions};
use crate::tensor_names::{TensorLayout, TensorNames};

/// JinaBERT v2.
pub(super) const JINA: Family = Family {
    name: "JinaBERT v2",
    model_types: &["bert"],
    condition: Some(("position_embedding_type", "alibi")),
    nested_config: None,
    default_sizes: &[],
    examples: "jina-embeddings-v2-small-en, jina-embeddings-v2-base-en, -de, -es, -zh, jina-reranker-v1-*",
    goldens: &["tiny-jina"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_off(&["is_decoder", "add_cross_attention"])?;
        if c.get("auto_map").to_string().contains("qk-post-norm") {
            return Err(Unsupported("norms of queries and keys".to_owned()));
        }
        post_norm(c, d)?;
        d.token_types = c.size(&["type_vocab_size"]).unwrap_or(2);
        d.relative_positions = Some(RelativePositions::Alibi);
        let kind = c.string(&["feed_forward_type"], "original");
        d.gated = kind != "original";
        if d.gated {
            d.activate(c, &["feed_forward_type"], "geglu")?;
            d.biases = Biases { up: false, ..Biases::ALL };
        }
        Ok(())
    },
    names: TensorNames {
        up: &[
            TensorLayout::Stacked(&["encoder.layer.{}.mlp.gated_layers"]),
            TensorLayout::Stacked(&["encoder.layer.{}.intermediate.dense"]),
        ],
        down: &["encoder.layer.{}.mlp.wo", "encoder.layer.{}.output.dense"],
        output_norms: [&[], &["encoder.layer.{}.mlp.layernorm", "encoder.layer.{}.output.LayerNorm"]],
        ..names::BERT
    },
};
