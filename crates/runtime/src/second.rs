//! The placement that gives second opinions: another one of the plan that is as near to the reference, or the reference.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use sconce_core::placement::Placement;
use sconce_planner::band::Band;

use crate::active::{ActivePlacement, Loader, Obstructed};
use crate::model::Claim;
use crate::serving::{Serving, State};

/// A placement that is to be loaded for second opinions. It keeps nothing of the model loaded.
pub struct SecondLoad {
    loader: Loader,
    placement: Placement,
    band: Band,
}

/// What came of loading it.
pub struct SecondLoaded {
    placement: Placement,
    outcome: Result<ActivePlacement, Obstructed>,
}

impl SecondLoad {
    /// What it will take.
    pub fn claim(&self) -> Option<Claim> {
        Claim::of(&self.loader.subject.card, &self.placement)
    }

    /// Tries the real weights on the placement where that was not done yet, and loads them.
    pub fn load(self) -> SecondLoaded {
        let SecondLoad { loader, placement, band } = self;
        let outcome = loader.take(&placement, Some(band), &mut |_| {});
        SecondLoaded { placement, outcome }
    }
}

impl Serving {
    /// A loaded placement that is none of `asked` and as near to the reference as `band`.
    pub(crate) fn second(&self, asked: &[Placement], band: Band) -> Option<Arc<ActivePlacement>> {
        let _one_at_a_time = self.taking().lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(active) = self.lock().loaded_beside(asked) {
                return Some(active);
            }
            self.admit_second(self.second_to_load(asked, band)?.load());
        }
    }

    pub(crate) fn second_to_load(&self, asked: &[Placement], band: Band) -> Option<SecondLoad> {
        let mut state = self.lock();
        if state.loaded_beside(asked).is_some() {
            return None;
        }
        let placement = state.candidates(band).find(|candidate| !asked.contains(candidate))?;
        Some(SecondLoad { loader: self.loader().clone(), placement, band })
    }

    pub(crate) fn admit_second(&self, second: SecondLoaded) {
        let SecondLoaded { placement, outcome } = second;
        let mut state = self.lock();
        match outcome {
            Ok(active) => state.second = Some((Arc::new(active), Instant::now())),
            // It stays in the plan: there may be room for it once another one is gone.
            Err(_) => state.unavailable.push(placement),
        }
    }
}

impl State {
    /// A placement that is loaded and none of `asked`.
    fn loaded_beside(&mut self, asked: &[Placement]) -> Option<Arc<ActivePlacement>> {
        let other = |active: &Arc<ActivePlacement>| !asked.contains(&active.placement);
        if let Some((second, used)) = self.second.as_mut().filter(|(second, _)| other(second)) {
            *used = Instant::now();
            return Some(Arc::clone(second));
        }
        self.active.clone().filter(other)
    }

    /// The placements that may give a second opinion, in the order of the plan, the reference last.
    fn candidates(&self, band: Band) -> impl Iterator<Item = Placement> {
        let near = self.plan.viable().filter(move |viable| viable.band <= band);
        let all = near.map(|viable| &viable.placement).chain(&self.plan.reference);
        let out = self.quarantined.iter().map(|viable| &viable.placement);
        let out: Vec<&Placement> = out.chain(&self.unavailable).collect();
        all.filter(move |placement| !out.contains(placement)).cloned()
    }
}
