//! The return of a placement that was taken out of service: proved anew and loaded, then put back into the plan.

use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use sconce_planner::plan::Viable;

use crate::active::{ActivePlacement, Loader, within};
use crate::model::Model;

/// A placement that is to return. It keeps nothing of the model loaded, so that the model can be dropped meanwhile.
pub struct Readmission {
    loader: Loader,
    viable: Viable,
    promised: Option<Band>,
}

/// A placement that is right again and loaded.
pub struct Readmitted {
    pub(crate) viable: Viable,
    pub(crate) active: ActivePlacement,
}

impl Readmission {
    pub(crate) fn new(loader: Loader, viable: Viable, promised: Option<Band>) -> Readmission {
        Readmission { loader, viable, promised }
    }

    /// Tries the real weights anew in a process of its own, and loads them where they are right. Takes as long as
    /// proving does.
    pub fn prove(self) -> Result<Readmitted, Obstacle> {
        let Readmission { loader, viable, promised } = self;
        let canary = loader.runtime.try_anew(&loader.subject, &viable.placement)?;
        within(&canary, loader.reference.as_ref(), promised.unwrap_or(loader.constraints.band))?;
        let active = loader.take(&viable.placement, promised, &mut |_| {})?;
        Ok(Readmitted { viable, active })
    }
}

impl Model {
    /// The way back of a placement that was taken out of service; none where it was not.
    pub fn readmission(&self, placement: &Placement) -> Option<Readmission> {
        self.serving().readmission(placement)
    }

    /// Puts a placement that is right again back to its place in the plan.
    pub fn admit(&self, readmitted: Readmitted) {
        self.serving().admit(readmitted);
    }

    /// Tries the real weights anew on a placement that was taken out of service, in a process of its own; where
    /// they are right it returns to its place in the plan. Takes as long as proving does, and holds nobody up.
    pub fn readmit(&self, placement: &Placement) -> Result<(), Obstacle> {
        if let Some(readmission) = self.readmission(placement) {
            self.admit(readmission.prove()?);
        }
        Ok(())
    }
}
