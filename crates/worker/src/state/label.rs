//! The label of a placement in metrics, headers and the log.

use sconce::Placement;

/// A placement without its weights: `native/cpu/bf16`.
pub(crate) fn short(placement: &Placement) -> String {
    format!("{}/{}/{}", placement.engine, placement.device, placement.dtype)
}

/// Several placements, separated by commas.
pub(crate) fn joined(placements: &[Placement]) -> String {
    placements.iter().map(short).collect::<Vec<_>>().join(", ")
}
