//! Memory of the KV cache, and the context that fits in it.

use sconce_core::card::ModelCard;
use sconce_core::generator::CacheLayout;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_engines::model_cost::ModelCost;
use serde::Serialize;

use crate::memory;

/// Full contexts that the KV cache holds at most.
const MAX_CONTEXTS: usize = 64;
/// The KV cache takes at most one part in this many of the available memory.
const MEMORY_SHARE: u64 = 4;
/// Memory for the KV cache if the system does not say how much is available.
const UNKNOWN_MEMORY: u64 = 1 << 30;

/// Blocks of the KV cache of a model with this context: what fits in the memory share, and no more than is useful.
pub(super) fn blocks(layout: CacheLayout, context: usize, cache_bytes: Option<u64>) -> usize {
    let memory = cache_bytes.unwrap_or_else(|| share(0));
    let fitting = memory / layout.block_bytes.max(1) as u64;
    let useful = MAX_CONTEXTS * context.div_ceil(layout.block_size.max(1));
    usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, useful.max(1))
}

/// The share of the memory that is available now, less `loaded` bytes.
fn share(loaded: u64) -> u64 {
    memory::available().map_or(UNKNOWN_MEMORY, |available| available.saturating_sub(loaded) / MEMORY_SHARE)
}

/// The KV cache of a model on a placement, as it would be now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CacheEstimate {
    /// Bytes per token.
    pub bytes_per_token: u64,
    /// Maximum size in bytes.
    pub bytes: u64,
    /// The longest sequence that fits, in tokens, and no longer than the model's context.
    pub context: usize,
}

impl CacheEstimate {
    /// Estimates the KV cache of the card's model on `placement`, before it is loaded.
    pub fn of(card: &ModelCard, placement: &Placement) -> Result<CacheEstimate, Obstacle> {
        let bytes_per_token = ModelCost::of(card)?.cache_bytes(placement.engine, placement.dtype).max(1);
        let weights = card.weights_named(&placement.weights);
        let bytes = share(weights.map_or(0, |weights| weights.bytes_in(placement.dtype)));
        let fitting = usize::try_from(bytes / bytes_per_token).unwrap_or(usize::MAX);
        Ok(CacheEstimate { bytes_per_token, bytes, context: fitting.min(card.max_length.value) })
    }
}

#[cfg(test)]
mod tests {
    use sconce_core::device::Device;
    use sconce_core::placement::{Dtype, EngineId};
    use sconce_testkit::goldens;

    use super::*;
    use crate::card::{self, Overrides};

    #[test]
    fn blocks_fill_the_memory_and_no_more_than_is_useful() {
        let layout = CacheLayout { block_size: 16, block_bytes: 1000 };
        assert_eq!(blocks(layout, 4096, Some(20_999)), 20);
        assert_eq!(blocks(layout, 4096, Some(0)), 1);
        assert_eq!(blocks(layout, 17, Some(u64::MAX)), 2 * MAX_CONTEXTS);
    }

    #[test]
    fn the_estimate_is_that_of_the_placement_and_bounded_by_the_model() {
        let folder = goldens::folder("tiny-qwen3-generate");
        let card = card::read("tiny", &folder, &Overrides::default()).expect("the golden is a model").card;
        let estimate = |engine, dtype| {
            let weights = card.weights[0].name.clone();
            CacheEstimate::of(&card, &Placement { engine, device: Device::Cpu, weights, dtype })
                .expect("it is known")
        };
        let (wide, narrow) =
            (estimate(EngineId::Native, Dtype::F32), estimate(EngineId::Native, Dtype::Bf16));
        assert_eq!(wide.bytes_per_token, 2 * narrow.bytes_per_token);
        assert_eq!(narrow.context, card.max_length.value, "a tiny model has room for its whole context");
        assert!(narrow.bytes > narrow.bytes_per_token * narrow.context as u64);
    }
}
