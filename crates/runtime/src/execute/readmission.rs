//! Readmission of a quarantined placement: proved again, loaded, and returned to the plan.

use sconce_core::obstacle::Obstacle;
use sconce_planner::band::Band;
use sconce_planner::plan::Viable;

use super::loader::{ActivePlacement, Loader, within};

/// A quarantined placement to prove again. It holds no weights: the model can be dropped in the meantime.
pub struct Readmission {
    loader: Loader,
    viable: Viable,
    band: Option<Band>,
}

/// A placement that passed, and is loaded.
pub struct Readmitted {
    pub(super) viable: Viable,
    pub(super) active: ActivePlacement,
}

impl Readmission {
    pub(super) fn new(loader: Loader, viable: Viable, band: Option<Band>) -> Readmission {
        Readmission { loader, viable, band }
    }

    /// Proves the real weights again, and loads them. This may take minutes.
    pub fn prove(self) -> Result<Readmitted, Obstacle> {
        let Readmission { loader, viable, band } = self;
        let canary = loader.runtime.prove_again(&loader.spec, &viable.placement)?;
        let allowed = band.unwrap_or(loader.constraints.band);
        within(&canary, viable.placement.dtype, loader.reference.as_ref(), allowed)?;
        let active = loader.prove_and_load(&viable.placement, band, &mut |_| {})?;
        Ok(Readmitted { viable, active })
    }
}
