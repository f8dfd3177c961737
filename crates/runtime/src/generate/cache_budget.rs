//! Memory of the KV cache, and the context that fits in it.

use sconce_core::card::ModelCard;
use sconce_core::device::Device;
use sconce_core::generator::CacheLayout;
use sconce_core::hardware::Hardware;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_engines::model_cost::ModelCost;
use serde::Serialize;

use crate::memory;

/// Full contexts that the KV cache holds at most.
const MAX_CONTEXTS: usize = 64;
/// The KV cache takes at most one part in this many of the available memory.
const MEMORY_SHARE: u64 = 4;
/// On a device with memory of its own, the KV cache takes at most one part in this many of what the weights leave.
const DEVICE_SHARE: u64 = 2;
/// Memory for the KV cache if the system does not say how much is available.
const UNKNOWN_MEMORY: u64 = 1 << 30;

/// Memory for the KV cache of a loaded model.
pub(crate) struct CacheBudget {
    /// The machine's hardware.
    pub(crate) hardware: Hardware,
    /// Memory in bytes; by default a share of the memory of the device.
    pub(crate) bytes: Option<u64>,
}

impl CacheBudget {
    /// Blocks of the KV cache on `placement`: what fits in the memory, and no more than is useful.
    pub(super) fn blocks(&self, card: &ModelCard, placement: &Placement, layout: CacheLayout) -> usize {
        let memory = self.bytes.unwrap_or_else(|| share(card, placement, &self.hardware, 0));
        let fitting = memory / layout.block_bytes.max(1) as u64;
        let useful = MAX_CONTEXTS * card.max_length.value.div_ceil(layout.block_size.max(1));
        usize::try_from(fitting).unwrap_or(usize::MAX).clamp(1, useful.max(1))
    }
}

/// The share of the KV cache on `placement`: of the memory that is available now, less `loading` bytes. On a CUDA device,
/// of its memory without the weights.
fn share(card: &ModelCard, placement: &Placement, hardware: &Hardware, loading: u64) -> u64 {
    if let (Device::Cuda(_), Some(memory)) = (placement.device, hardware.memory_of(placement.device)) {
        return memory.saturating_sub(weight_bytes(card, placement)) / DEVICE_SHARE;
    }
    memory::available().map_or(UNKNOWN_MEMORY, |available| available.saturating_sub(loading) / MEMORY_SHARE)
}

fn weight_bytes(card: &ModelCard, placement: &Placement) -> u64 {
    card.weights_named(&placement.weights).map_or(0, |weights| weights.bytes_in(placement.dtype))
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
    pub fn of(
        card: &ModelCard,
        placement: &Placement,
        hardware: &Hardware,
    ) -> Result<CacheEstimate, Obstacle> {
        let bytes_per_token = ModelCost::of(card)?.cache_bytes(placement).max(1);
        let bytes = share(card, placement, hardware, weight_bytes(card, placement));
        let fitting = usize::try_from(bytes / bytes_per_token).unwrap_or(usize::MAX);
        Ok(CacheEstimate { bytes_per_token, bytes, context: fitting.min(card.max_length.value) })
    }
}

#[cfg(test)]
mod tests {
    use sconce_core::device::DeviceKind;
    use sconce_core::hardware::Gpu;
    use sconce_core::placement::{Dtype, EngineId};
    use sconce_testkit::goldens;

    use super::*;
    use crate::card::{self, Overrides};

    fn card() -> ModelCard {
        let folder = goldens::folder("tiny-qwen3-generate");
        card::read("tiny", &folder, &Overrides::default()).expect("the golden is a model").card
    }

    fn placement(card: &ModelCard, device: Device, dtype: Dtype) -> Placement {
        Placement { engine: EngineId::Candle, device, weights: card.weights[0].name.clone(), dtype }
    }

    #[test]
    fn blocks_fill_the_memory_and_no_more_than_is_useful() {
        let mut card = card();
        let layout = CacheLayout { block_size: 16, block_bytes: 1000, separates_prompts: false };
        let mut blocks = |context: usize, bytes: u64| {
            card.max_length.value = context;
            let budget = CacheBudget { hardware: Hardware::default(), bytes: Some(bytes) };
            budget.blocks(&card, &placement(&card, Device::Cpu, Dtype::F32), layout)
        };
        assert_eq!(blocks(4096, 20_999), 20);
        assert_eq!(blocks(4096, 0), 1);
        assert_eq!(blocks(17, u64::MAX), 2 * MAX_CONTEXTS);
    }

    #[test]
    fn a_device_with_memory_of_its_own_shares_what_the_weights_leave() {
        let card = card();
        let weights = card.weights[0].bytes_in(Dtype::F16);
        let gpu = Gpu {
            kind: Some(DeviceKind::Cuda),
            memory: Some(weights + 8000),
            index: 0,
            name: String::new(),
            driver: None,
            seen_by: String::new(),
        };
        let hardware = Hardware { gpus: vec![gpu], ..Hardware::default() };
        let on = placement(&card, Device::Cuda(0), Dtype::F16);
        assert_eq!(CacheEstimate::of(&card, &on, &hardware).expect("it is known").bytes, 4000);
        let budget = CacheBudget { hardware, bytes: None };
        let layout = CacheLayout { block_size: 16, block_bytes: 1000, separates_prompts: false };
        assert_eq!(budget.blocks(&card, &on, layout), 4);
    }

    #[test]
    fn the_estimate_is_that_of_the_placement_and_bounded_by_the_model() {
        let card = card();
        let estimate = |dtype| {
            let on = placement(&card, Device::Cpu, dtype);
            CacheEstimate::of(&card, &on, &Hardware::default()).expect("it is known")
        };
        let (wide, narrow) = (estimate(Dtype::F32), estimate(Dtype::Bf16));
        assert_eq!(wide.bytes_per_token, 2 * narrow.bytes_per_token);
        assert_eq!(narrow.context, card.max_length.value, "a tiny model has room for its whole context");
        assert!(narrow.bytes > narrow.bytes_per_token * narrow.context as u64);
    }
}
