//! Memory that the weights of a model take on a placement.

use sconce_core::card::ModelCard;
use sconce_core::placement::Placement;

/// Memory of a model's weights on a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The placement.
    pub placement: Placement,
    /// Identity of the weights, which changes with their content.
    pub identity: String,
    /// Size of the weights in the dtype of the placement, in bytes.
    pub bytes: u64,
}

impl Claim {
    pub(crate) fn of(card: &ModelCard, placement: &Placement) -> Option<Claim> {
        let weights = card.weights_named(&placement.weights)?;
        let (identity, bytes) = (weights.identity.clone(), weights.bytes_in(placement.dtype));
        Some(Claim { placement: placement.clone(), identity, bytes })
    }
}

/// Estimated main memory of a prover child for the largest of `placements`, in bytes: the weights, a quarter more while
/// they are read, and the process itself. Placements are proved one at a time.
pub(crate) fn prover_bytes<'a>(card: &ModelCard, placements: impl Iterator<Item = &'a Placement>) -> u64 {
    const PROCESS_BYTES: u64 = 48 << 20;
    let bytes = placements.filter_map(|placement| Claim::of(card, placement)).map(|claim| claim.bytes).max();
    bytes.map_or(0, |bytes| bytes + bytes / 4 + PROCESS_BYTES)
}
