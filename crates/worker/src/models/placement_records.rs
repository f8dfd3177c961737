//! The placements of a plan as records of a registry.

use sconce::planner::plan::Refusal;
use sconce::{Placement, Plan};
use sconce_registry::{ObstacleRecord, PlacementRecord};

use crate::state::label::short;

/// The placements of a plan: those that work, and those that have an obstacle.
pub(crate) fn placements(
    plan: &Plan,
    active: Option<&Placement>,
    class: Option<&String>,
) -> Vec<PlacementRecord> {
    let viable = plan.viable().map(|viable| {
        let is_active = Some(&viable.placement) == active;
        PlacementRecord {
            placement: short(&viable.placement),
            active: is_active,
            class: class.filter(|_| is_active).cloned(),
            band: Some(viable.band.to_string()),
            obstacle: None,
        }
    });
    let refused = plan.refused.iter().filter_map(|refused| {
        let (band, obstacle) = match &refused.why {
            Refusal::Obstacle(obstacle) => (None, (obstacle.code(), obstacle.to_string())),
            Refusal::Band { band, error, .. } => {
                (Some(band.to_string()), ("band", format!("distance from the reference: {error}")))
            }
            Refusal::NotRequested | Refusal::NotTried => return None,
        };
        let (code, message) = obstacle;
        let obstacle = Some(ObstacleRecord { code: code.to_owned(), message });
        Some(PlacementRecord {
            placement: short(&refused.placement),
            active: false,
            class: None,
            band,
            obstacle,
        })
    });
    viable.chain(refused).collect()
}
