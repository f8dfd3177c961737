//! The second placement that checks unresolved sequences: another one of the plan in the same band, or the reference.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use sconce_core::placement::Placement;
use sconce_planner::band::Band;

use super::loader::{ActivePlacement, LoadError, Loader};
use super::outcome::UnresolvedSequence;
use super::serving::{Serving, State};
use crate::memory::Claim;

/// A second placement to load. It holds no weights of the model.
pub struct SecondLoad {
    loader: Loader,
    placement: Placement,
    band: Band,
}

/// A second placement after loading.
pub struct SecondLoaded {
    placement: Placement,
    outcome: Result<ActivePlacement, LoadError>,
}

impl SecondLoad {
    /// Memory of its weights.
    pub fn claim(&self) -> Option<Claim> {
        Claim::of(&self.loader.spec.card, &self.placement)
    }

    /// Proves the real weights, if not yet proved, and loads them.
    pub fn load(self) -> SecondLoaded {
        let SecondLoad { loader, placement, band } = self;
        let outcome = loader.prove_and_load(&placement, Some(band), &mut |_| {});
        SecondLoaded { placement, outcome }
    }
}

impl Serving {
    /// A loaded placement within `band` that is not in `excluded`. Loads one if necessary.
    pub(super) fn second(&self, excluded: &[Placement], band: Band) -> Option<Arc<ActivePlacement>> {
        let _one_at_a_time = self.load_lock().lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(active) = self.lock().loaded_except(excluded) {
                return Some(active);
            }
            self.admit_second(self.next_second(excluded, band)?.load());
        }
    }

    /// The placement to load before `sequence` can be resolved. `None` if one is loaded, or none is left.
    pub(crate) fn second_to_load(&self, sequence: &UnresolvedSequence) -> Option<SecondLoad> {
        self.next_second(std::slice::from_ref(&sequence.origin.placement), sequence.origin.band)
    }

    fn next_second(&self, excluded: &[Placement], band: Band) -> Option<SecondLoad> {
        let mut state = self.lock();
        if state.loaded_except(excluded).is_some() {
            return None;
        }
        let placement = state.candidates(band).find(|candidate| !excluded.contains(candidate))?;
        Some(SecondLoad { loader: self.loader().clone(), placement, band })
    }

    /// Keeps a loaded second placement, or marks it as unavailable.
    pub(crate) fn admit_second(&self, second: SecondLoaded) {
        let SecondLoaded { placement, outcome } = second;
        let mut state = self.lock();
        match outcome {
            Ok(active) => state.second = Some((Arc::new(active), Instant::now())),
            // It stays in the plan: memory may become free.
            Err(_) => state.unavailable.push(placement),
        }
    }
}

impl State {
    /// A loaded placement that is not in `excluded`.
    fn loaded_except(&mut self, excluded: &[Placement]) -> Option<Arc<ActivePlacement>> {
        let other = |active: &Arc<ActivePlacement>| !excluded.contains(&active.placement);
        if let Some((second, used)) = self.second.as_mut().filter(|(second, _)| other(second)) {
            *used = Instant::now();
            return Some(Arc::clone(second));
        }
        self.active.clone().filter(other)
    }

    /// Possible second placements in plan order, the reference last.
    fn candidates(&self, band: Band) -> impl Iterator<Item = Placement> {
        let near = self.plan.viable().filter(move |viable| viable.band <= band);
        let all = near.map(|viable| &viable.placement).chain(&self.plan.reference);
        let out = self.quarantined.iter().map(|viable| &viable.placement);
        let out: Vec<&Placement> = out.chain(&self.unavailable).collect();
        all.filter(move |placement| !out.contains(placement)).cloned()
    }
}
