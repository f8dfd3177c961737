//! The compute cost of a model: FLOPs and bytes, from its description.

use sconce_core::card::{KvCacheDtype, ModelCard};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};

use crate::describe::describe;
use crate::description::Description;

/// The compute cost of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelCost {
    /// FLOPs per pair of tokens in attention.
    attention: f64,
    /// Weights of all layers, which one forward pass reads at least once.
    weights: f64,
    /// Values that the KV cache stores per token.
    cached: u64,
    kv_cache_dtype: KvCacheDtype,
}

impl ModelCost {
    /// The cost of the card's model.
    pub fn of(card: &ModelCard) -> Result<ModelCost, Obstacle> {
        Ok(ModelCost::by(&describe(card)?))
    }

    fn by(d: &Description) -> ModelCost {
        let blocks = d.experts.map_or(1, |experts| experts.per_token);
        let layer = d.hidden * (d.qkv_width() + d.query_width() + blocks * (d.up_width() + d.intermediate));
        let layers = d.layers as f64;
        let cached = 2 * d.layers * d.kv_heads * d.head_dim;
        ModelCost {
            attention: layers * 4.0 * d.query_width() as f64,
            weights: layers * layer as f64,
            cached: cached as u64,
            kv_cache_dtype: d.kv_cache_dtype,
        }
    }

    /// Bytes of the KV cache per token on `placement`.
    pub fn cache_bytes(&self, placement: &Placement) -> u64 {
        if placement.engine == EngineId::Native && self.kv_cache_dtype == KvCacheDtype::Q8_0 {
            // A scale of two bytes per 32 values.
            return self.cached + self.cached / 16;
        }
        match placement.dtype {
            Dtype::F32 => 4 * self.cached,
            Dtype::F16 | Dtype::Bf16 | Dtype::Int8 | Dtype::Int4 => 2 * self.cached,
        }
    }

    /// FLOPs for sequences of these lengths, with full attention.
    pub fn flops(&self, lengths: &[usize]) -> f64 {
        let dense = 2.0 * self.weights;
        lengths.iter().map(|&length| length as f64 * (dense + self.attention * length as f64)).sum()
    }

    /// Bytes of weights that one forward pass reads at least.
    pub fn bytes(&self, dtype: Dtype) -> f64 {
        self.weights * dtype.bits() as f64 / 8.0
    }
}

#[cfg(test)]
mod tests {
    use sconce_core::card::Sizes;
    use sconce_core::device::Device;
    use serde_json::json;

    use super::*;
    use crate::describe::from_config;

    fn cost(config: &serde_json::Value, sizes: &Sizes) -> ModelCost {
        ModelCost::by(&from_config(config, sizes).unwrap())
    }

    fn same(got: f64, want: f64) {
        assert!((got - want).abs() < 0.5, "{got} instead of {want}");
    }

    #[test]
    fn operations_are_those_of_products_and_of_attention() {
        let minilm = Sizes {
            layers: 6,
            hidden: 384,
            heads: 12,
            intermediate: 1536,
            vocabulary: 30522,
            positions: 512,
        };
        let config = json!({
            "model_type": "bert", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2,
            "position_embedding_type": "absolute",
        });
        let cost = cost(&config, &minilm);
        // 10.6 million weights in the layers, each used once per token.
        same(cost.weights, 10_616_832.0);
        same(cost.flops(&[1]), 2.0 * 10_616_832.0 + 6.0 * 4.0 * 384.0);
        same(cost.flops(&[3, 3]), 2.0 * cost.flops(&[3]));
        assert!(cost.flops(&[6]) > 2.0 * cost.flops(&[3]));
        same(cost.bytes(Dtype::F32), 42_467_328.0);
        same(cost.bytes(Dtype::Bf16), 21_233_664.0);
    }

    #[test]
    fn gates_count_and_shared_keys_do_not() {
        let qwen = Sizes {
            layers: 28,
            hidden: 1024,
            heads: 16,
            intermediate: 3072,
            vocabulary: 9,
            positions: 32768,
        };
        let config = json!({
            "model_type": "qwen3", "hidden_act": "silu", "rms_norm_eps": 1e-6, "head_dim": 128,
            "num_key_value_heads": 8, "rope_theta": 1_000_000.0,
        });
        let layer = 1024.0 * (2048.0 + 2.0 * 1024.0) + 2048.0 * 1024.0 + 3.0 * 1024.0 * 3072.0;
        let cost = cost(&config, &qwen);
        same(cost.weights, 28.0 * layer);
        let values = 28 * 2 * 8 * 128;
        let on = |engine, dtype| Placement { engine, device: Device::Cpu, weights: String::new(), dtype };
        assert_eq!(cost.cache_bytes(&on(EngineId::Native, Dtype::Bf16)), values * 2);
        assert_eq!(cost.cache_bytes(&on(EngineId::Native, Dtype::Int4)), values * 2);
        assert_eq!(cost.cache_bytes(&on(EngineId::Native, Dtype::F32)), values * 4);
        let cost = ModelCost { kv_cache_dtype: KvCacheDtype::Q8_0, ..cost };
        assert_eq!(cost.cache_bytes(&on(EngineId::Native, Dtype::Bf16)), values * 17 / 16);
        assert_eq!(cost.cache_bytes(&on(EngineId::Candle, Dtype::Bf16)), values * 2);
    }
}
