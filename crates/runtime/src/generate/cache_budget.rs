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
