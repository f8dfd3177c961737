//! BERT, RoBERTa, DistilBERT and MPNet.

use super::encoder::{absolute_positions, positions_after_padding, post_norm};
use super::family::Family;
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{Description, RelativePositions};
use crate::positional::bucketed_bias::BucketedBias;
use crate::tensor_names::{TensorLayout, TensorNames};

/// BERT.
pub(super) const BERT: Family = Family {
    name: "BERT",
    model_types: &["bert"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "all-MiniLM-L6-v2, bge-*-v1.5, e5-*-v2, gte-small/base/large, mxbai-embed-large-v1",
    goldens: &["tiny-bert"],
    generation_goldens: &[],
    describe: |c, d| {
        absolute_positions(d);
        plain(c, d)
    },
    names: names::BERT,
};

fn plain(c: &Config<'_>, d: &mut Description) -> Result<(), Unsupported> {
    c.require_off(&["is_decoder", "add_cross_attention"])?;
    c.require_one_of("position_embedding_type", &["absolute".into()])?;
    d.token_types = c.size(&["type_vocab_size"]).unwrap_or(2);
    post_norm(c, d)
}

/// RoBERTa, XLM-RoBERTa and CamemBERT.
pub(super) const ROBERTA: Family = Family {
    name: "RoBERTa, XLM-RoBERTa, CamemBERT",
    model_types: &["roberta", "xlm-roberta", "camembert"],
    examples: "multilingual-e5-*, bge-m3, all-distilroberta-v1, paraphrase-multilingual-mpnet-base-v2",
    goldens: &["tiny-roberta", "tiny-xlm-roberta", "tiny-camembert"],
    generation_goldens: &[],
    describe: |c, d| {
        positions_after_padding(c, d);
        plain(c, d)
    },
    ..BERT
};

/// DistilBERT.
pub(super) const DISTILBERT: Family = Family {
    name: "DistilBERT",
    model_types: &["distilbert"],
    examples: "multi-qa-distilbert-*, msmarco-distilbert-*, distiluse-base-multilingual-cased-v2",
    goldens: &["tiny-distilbert"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_off(&["is_decoder", "sinusoidal_pos_embds"])?;
        c.require_one_of("position_embedding_type", &["absolute".into()])?;
        absolute_positions(d);
        post_norm(c, d)?;
        d.epsilon = 1e-12;
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "distilbert.", "model.", "0.auto_model."],
        qkv: &[TensorLayout::Stacked(&[
            "transformer.layer.{}.attention.q_lin",
            "transformer.layer.{}.attention.k_lin",
            "transformer.layer.{}.attention.v_lin",
        ])],
        output: &["transformer.layer.{}.attention.out_lin"],
        attention_norms: [&[], &["transformer.layer.{}.sa_layer_norm"]],
        up: &[TensorLayout::Stacked(&["transformer.layer.{}.ffn.lin1"])],
        down: &["transformer.layer.{}.ffn.lin2"],
        output_norms: [&[], &["transformer.layer.{}.output_layer_norm"]],
        ..names::BERT
    },
    ..BERT
};

/// MPNet.
pub(super) const MPNET: Family = Family {
    name: "MPNet",
    model_types: &["mpnet"],
    examples: "all-mpnet-base-v2, multi-qa-mpnet-base-dot-v1",
    goldens: &["tiny-mpnet"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_one_of("position_embedding_type", &["absolute".into()])?;
        positions_after_padding(c, d);
        post_norm(c, d)?;
        let count = c.size(&["relative_attention_num_buckets"]).unwrap_or(32);
        d.relative_positions =
            Some(RelativePositions::BucketedBias(BucketedBias { count, max_distance: 128 }));
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "mpnet.", "model.", "0.auto_model."],
        qkv: &[TensorLayout::Stacked(&[
            "encoder.layer.{}.attention.attn.q",
            "encoder.layer.{}.attention.attn.k",
            "encoder.layer.{}.attention.attn.v",
        ])],
        output: &["encoder.layer.{}.attention.attn.o"],
        attention_norms: [&[], &["encoder.layer.{}.attention.LayerNorm"]],
        relative: "encoder.relative_attention_bias.weight",
        ..names::BERT
    },
    ..BERT
};
