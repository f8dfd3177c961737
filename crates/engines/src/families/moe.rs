//! Decoders with a mixture of experts: Mixtral, Qwen3-MoE.

use super::family::Family;
use super::llama::{LLAMA, plain, windowed};
use super::names;
use crate::config::{Config, Unsupported};
use crate::description::{Description, Experts};
use crate::tensor_names::{TensorLayout, TensorNames};

/// Experts in every layer.
fn experts(c: &Config<'_>, d: &mut Description, normalized: bool) -> Result<(), Unsupported> {
    let count = c.size(&["num_experts", "num_local_experts"]).ok_or_else(|| c.unsupported("num_experts"))?;
    let per_token = c.size(&["num_experts_per_tok"]).unwrap_or(2);
    d.experts = Some(Experts { count, per_token, normalized });
    plain(c, d)
}

/// Mixtral.
pub(super) const MIXTRAL: Family = Family {
    name: "Mixtral",
    model_types: &["mixtral"],
    examples: "Mixtral-8x7B-Instruct",
    goldens: &[],
    generation_goldens: &["tiny-mixtral-generate"],
    describe: |c, d| {
        experts(c, d, true)?;
        if let Some(window) = c.size(&["sliding_window"]) {
            d.global = windowed(c, &d.global, window)?;
        }
        Ok(())
    },
    names: TensorNames {
        router: "layers.{}.block_sparse_moe.gate",
        up: &[TensorLayout::Stacked(&[
            "layers.{}.block_sparse_moe.experts.{e}.w1",
            "layers.{}.block_sparse_moe.experts.{e}.w3",
        ])],
        down: &["layers.{}.block_sparse_moe.experts.{e}.w2"],
        ..names::LLAMA
    },
    ..LLAMA
};

/// Qwen3-MoE.
pub(super) const QWEN3_MOE: Family = Family {
    name: "Qwen3-MoE",
    model_types: &["qwen3_moe"],
    examples: "Qwen3-30B-A3B",
    goldens: &[],
    generation_goldens: &["tiny-qwen3-moe-generate"],
    describe: |c, d| {
        // Layers without experts are not supported.
        c.require_off(&["mlp_only_layers", "use_sliding_window"])?;
        c.require_one_of("decoder_sparse_step", &[1.into()])?;
        c.skip(&["sliding_window", "max_window_layers", "layer_types"]);
        experts(c, d, c.flag("norm_topk_prob", false))?;
        d.intermediate = c.size(&["moe_intermediate_size"]).unwrap_or(d.intermediate);
        d.qk_norm = true;
        Ok(())
    },
    names: TensorNames {
        router: "layers.{}.mlp.gate",
        up: &[TensorLayout::Stacked(&[
            "layers.{}.mlp.experts.{e}.gate_proj",
            "layers.{}.mlp.experts.{e}.up_proj",
        ])],
        down: &["layers.{}.mlp.experts.{e}.down_proj"],
        ..names::LLAMA
    },
    ..LLAMA
};
