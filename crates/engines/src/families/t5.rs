//! T5's encoder: pre-norm with RMS norms, no biases, unscaled attention with bucketed relative position biases.

use super::family::Family;
use super::names;
use crate::description::{NormKind, NormPlacement, RelativePositions};
use crate::positional::bucketed_bias::BucketedBias;
use crate::tensor_names::{TensorLayout, TensorNames};

/// T5's encoder.
pub(super) const T5: Family = Family {
    name: "T5 encoder",
    model_types: &["t5"],
    condition: None,
    nested_config: None,
    default_sizes: &[],
    examples: "sentence-t5-*, gtr-t5-*",
    goldens: &["tiny-t5", "tiny-t5-gated"],
    generation_goldens: &[],
    describe: |c, d| {
        c.require_off(&["is_decoder"])?;
        // The buckets cover any distance. Without `n_positions`, the training length applies.
        d.max_length = c.size(&["n_positions"]).unwrap_or(512);
        d.norm = NormKind::Rms;
        d.placement = NormPlacement::Pre;
        d.final_norm = true;
        d.epsilon = c.number(&["layer_norm_epsilon"], 1e-6);
        d.head_dim = c.size(&["d_kv"]).unwrap_or(64);
        d.kv_heads = d.heads;
        d.scale = 1.0;
        let projection = c.string(&["feed_forward_proj"], "relu");
        d.gated = projection.starts_with("gated-");
        match projection.trim_start_matches("gated-") {
            "gelu" if d.gated => d.activate_as("feed_forward_proj", "gelu_new")?,
            name => d.activate_as("feed_forward_proj", name)?,
        }
        d.relative_positions = Some(RelativePositions::BucketedBias(BucketedBias {
            count: c.size(&["relative_attention_num_buckets"]).unwrap_or(32),
            max_distance: c.size(&["relative_attention_max_distance"]).unwrap_or(128),
        }));
        Ok(())
    },
    names: TensorNames {
        prefixes: &["", "0.auto_model.", "model."],
        token_embeddings: &["shared.weight", "encoder.embed_tokens.weight"],
        embedding_norm: &[],
        qkv: &[TensorLayout::Stacked(&[
            "encoder.block.{}.layer.0.SelfAttention.q",
            "encoder.block.{}.layer.0.SelfAttention.k",
            "encoder.block.{}.layer.0.SelfAttention.v",
        ])],
        output: &["encoder.block.{}.layer.0.SelfAttention.o"],
        attention_norms: [&["encoder.block.{}.layer.0.layer_norm"], &[]],
        up: &[
            TensorLayout::Stacked(&[
                "encoder.block.{}.layer.1.DenseReluDense.wi_0",
                "encoder.block.{}.layer.1.DenseReluDense.wi_1",
            ]),
            TensorLayout::Stacked(&["encoder.block.{}.layer.1.DenseReluDense.wi"]),
        ],
        down: &["encoder.block.{}.layer.1.DenseReluDense.wo"],
        output_norms: [&["encoder.block.{}.layer.1.layer_norm"], &[]],
        final_norm: "encoder.final_layer_norm",
        relative: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ignored: &["relative_attention_bias"],
        ..names::BERT
    },
};
