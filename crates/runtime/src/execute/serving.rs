//! The placements of a loaded model: the plan, the active placement, and quarantine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sconce_core::batch::Batch;
use sconce_core::device::Device;
use sconce_core::engine::{BatchLayout, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use sconce_planner::plan::{Constraints, Downgrade, Plan, Refusal, Viable, plan};

use super::attempt::Failure;
use super::drift::DriftMonitor;
use super::loader::{ActivePlacement, LoadError, Loader};
use super::outcome::Incident;
use super::readmission::{Readmission, Readmitted};
use crate::card::contents::{Stamps, concerns};
use crate::error::Error;
use crate::event::Event;
use crate::memory::{Claim, MemoryAccount, MemoryPurpose};
use crate::prove::{GatheredEvidence, ProofDepth};
use crate::runtime::Runtime;

/// Maximum number of pending downgrades.
const MAX_PENDING_DOWNGRADES: usize = 64;

/// A loaded model.
pub(crate) struct Serving {
    loader: Loader,
    /// Control batch. Every viable placement computes it: a placement that fails on it is broken.
    control: Batch,
    state: Mutex<State>,
    /// Held while a placement is proved and loaded, which may take minutes. `state` is not locked then.
    load_lock: Mutex<()>,
    drift: DriftMonitor,
}

pub(super) struct State {
    pub(super) plan: Plan,
    pub(super) active: Option<Arc<ActivePlacement>>,
    /// The second placement, and its last use.
    pub(super) second: Option<(Arc<ActivePlacement>, Instant)>,
    /// Placements that could not be loaded as second placement.
    pub(super) unavailable: Vec<Placement>,
    /// Band of the first output. Later output stays within it.
    pub(super) committed_band: Option<Band>,
    /// Quarantined placements, which may be readmitted.
    pub(super) quarantined: Vec<Viable>,
    /// The latest downgrades that were not drained yet.
    pending_downgrades: Vec<Downgrade>,
    /// Incidents that were not drained yet.
    incidents: Vec<Incident>,
}

impl Serving {
    /// Gathers evidence, plans, and loads the first placement that passes its canary.
    pub(crate) fn open(
        runtime: &Runtime,
        spec: Arc<ModelSpec>,
        control: Batch,
        constraints: Constraints,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Serving, Error> {
        let stamps = Stamps::of(&spec);
        let admits = |placement: &Placement| constraints.admits(placement);
        let GatheredEvidence { grid, evidence, .. } =
            runtime.gather_evidence(&spec, ProofDepth::Twin, &admits, events)?;
        let plan = plan(&spec.card, &grid, &evidence, &constraints);
        let (reference, pending_downgrades) = (plan.reference.clone(), plan.downgrades.clone());
        let state = Mutex::new(State {
            plan,
            active: None,
            second: None,
            unavailable: Vec::new(),
            committed_band: None,
            quarantined: Vec::new(),
            pending_downgrades,
            incidents: Vec::new(),
        });
        let loader = Loader { runtime: runtime.clone(), spec, constraints, reference, stamps };
        let serving =
            Serving { loader, control, state, load_lock: Mutex::new(()), drift: DriftMonitor::default() };
        serving.active(events)?;
        Ok(serving)
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.loader.spec
    }

    pub(super) fn loader(&self) -> &Loader {
        &self.loader
    }

    pub(super) fn control(&self) -> &Batch {
        &self.control
    }

    pub(super) fn drift(&self) -> &DriftMonitor {
        &self.drift
    }

    /// The band of `placement`, if it is active.
    pub(super) fn band_of(&self, placement: &Placement) -> Option<Band> {
        let state = self.lock();
        state.active.as_ref().filter(|active| active.placement == *placement).map(|active| active.band)
    }

    /// Quarantines `placement`.
    pub(super) fn demote(&self, placement: &Placement, why: &str) {
        self.lock().retire(placement, Obstacle::Quarantined { reason: why.to_owned() });
    }

    /// Downgrades since the last call.
    pub(crate) fn drain_downgrades(&self) -> Vec<Downgrade> {
        std::mem::take(&mut self.lock().pending_downgrades)
    }

    /// Retires every placement that uses `file`, whose content does not match its recorded hash.
    pub(crate) fn retire_changed_file(&self, file: &str) {
        let concerned = |viable: &Viable| concerns(self.spec(), file, &viable.placement.weights);
        let mut state = self.lock();
        state.quarantined.retain(|viable| !concerned(viable));
        let there = state.plan.viable().filter(|viable| concerned(viable));
        let there: Vec<Placement> = there.map(|viable| viable.placement.clone()).collect();
        // The active placement last, so that no other with the same file replaces it.
        for placement in there.iter().rev() {
            state.retire(placement, Obstacle::ContentChanged { file: file.to_owned() });
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        self.lock().plan.clone()
    }

    /// Batch cost of the active placement.
    pub(crate) fn batch_layout(&self) -> BatchLayout {
        self.lock().active.as_ref().map_or(BatchLayout::Packed, |active| active.loaded.cost)
    }

    /// Number of concurrent batches that the active placement can run.
    pub(crate) fn concurrency(&self) -> usize {
        self.lock().active.as_ref().map_or(1, |active| active.loaded.concurrency)
    }

    /// Numerics class of the active placement.
    pub(crate) fn class(&self) -> Option<String> {
        self.lock().active.as_ref().map(|active| active.class.clone())
    }

    /// Memory of the weights of all loaded placements: active, second and reference.
    pub(crate) fn memory(&self) -> MemoryAccount {
        let mut placements: Vec<Placement> = Vec::new();
        {
            let state = self.lock();
            let second = state.second.as_ref().map(|(second, _)| second);
            placements.extend(state.active.iter().chain(second).map(|active| active.placement.clone()));
            let reference_is_loaded = self.drift.lock().reference.is_some();
            placements.extend(state.plan.reference.clone().filter(|_| reference_is_loaded));
        }
        let mut account = MemoryAccount::default();
        for claim in placements.iter().filter_map(|placement| Claim::of(&self.spec().card, placement)) {
            account.add(claim.placement.device, MemoryPurpose::Weights, claim.bytes);
        }
        account
    }

    /// Quarantined placements.
    pub(crate) fn quarantined(&self) -> Vec<Placement> {
        self.lock().quarantined.iter().map(|viable| viable.placement.clone()).collect()
    }

    /// Why no placement is available, from the last retired one. `None` while there is one.
    pub(crate) fn out_of_service(&self) -> Option<String> {
        let state = self.lock();
        if state.plan.chosen.is_some() {
            return None;
        }
        let refused = state.plan.refused.iter().rev().find_map(|refused| match &refused.why {
            Refusal::Obstacle(obstacle @ Obstacle::Quarantined { .. }) => {
                Some(format!("{} was {obstacle}", refused.placement))
            }
            Refusal::Obstacle(obstacle @ Obstacle::ContentChanged { .. }) => Some(obstacle.to_string()),
            Refusal::Obstacle(_) | Refusal::Band { .. } | Refusal::NotRequested | Refusal::NotTried => None,
        });
        Some(refused.unwrap_or_else(|| "no placement works".to_owned()))
    }

    /// Incidents since the last call.
    pub(crate) fn drain_incidents(&self) -> Vec<Incident> {
        std::mem::take(&mut self.lock().incidents)
    }

    /// Prepares the readmission of a quarantined placement.
    pub(crate) fn readmission(&self, placement: &Placement) -> Option<Readmission> {
        let state = self.lock();
        let viable = state.quarantined.iter().find(|viable| viable.placement == *placement)?;
        Some(Readmission::new(self.loader.clone(), viable.clone(), state.committed_band))
    }

    /// Returns a readmitted placement to its rank in the plan.
    pub(crate) fn admit(&self, readmitted: Readmitted) {
        let Readmitted { viable, active } = readmitted;
        let mut state = self.lock();
        let before = state.quarantined.len();
        state.quarantined.retain(|quarantined| quarantined.placement != viable.placement);
        if state.quarantined.len() == before {
            return;
        }
        let band = state.committed_band;
        state.plan.restore(viable, band);
        if state.plan.is_chosen(&active.placement) {
            state.active = Some(Arc::new(active));
        }
    }

    pub(super) fn load_lock(&self) -> &Mutex<()> {
        &self.load_lock
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retires a placement, or all placements of its device.
    pub(super) fn retire(&self, placement: &Placement, failure: Failure) -> Incident {
        let whole_device = matches!(failure, Failure::Device(..));
        let incident = failure.incident(placement);
        let mut state = self.lock();
        let retired = if whole_device {
            state.retire_device(placement.device, &incident.why)
        } else {
            state.retire(placement, Obstacle::Quarantined { reason: incident.why.clone() })
        };
        if retired {
            state.incidents.push(incident.clone());
        }
        incident
    }

    /// The active placement. Loads the next one of the plan if there is none.
    pub(super) fn active(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<Arc<ActivePlacement>, Error> {
        if let Some(active) = &self.lock().active {
            return Ok(Arc::clone(active));
        }
        let _one_at_a_time = self.load_lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (chosen, band) = {
                let state = self.lock();
                match (&state.active, &state.plan.chosen) {
                    (Some(active), _) => return Ok(Arc::clone(active)),
                    (None, Some(chosen)) => (chosen.clone(), state.committed_band),
                    (None, None) => {
                        let (plan, constraints) =
                            (Box::new(state.plan.clone()), Box::new(self.loader.constraints.clone()));
                        return Err(Error::NoPlacement { plan, constraints });
                    }
                }
            };
            let second = self.lock().second.take_if(|(second, _)| second.placement == chosen.placement);
            let loaded = match second {
                Some((second, _)) => Ok(second),
                None => self.loader.prove_and_load(&chosen.placement, band, events).map(Arc::new),
            };
            let mut state = self.lock();
            match loaded {
                // It may have been retired with its device in the meantime.
                Ok(active) if state.plan.is_chosen(&active.placement) => state.active = Some(active),
                Ok(_) => {}
                Err(LoadError::Obstacle(obstacle)) => {
                    state.retire(&chosen.placement, obstacle);
                }
                Err(LoadError::Error(error)) => return Err(*error),
            }
        }
    }
}

impl State {
    /// Removes `placement` from the plan, and promotes the next one. Returns whether it was in the plan.
    fn retire(&mut self, placement: &Placement, obstacle: Obstacle) -> bool {
        let is_quarantined = matches!(obstacle, Obstacle::Quarantined { .. });
        let was_active = self.plan.is_chosen(placement);
        let retired = self.plan.retire(placement, obstacle, self.committed_band);
        let was_in_plan = retired.is_some();
        self.quarantined.extend(retired.filter(|_| is_quarantined));
        if was_active {
            self.pending_downgrades.extend(self.plan.downgrades.last().cloned());
            let surplus = self.pending_downgrades.len().saturating_sub(MAX_PENDING_DOWNGRADES);
            self.pending_downgrades.drain(..surplus);
        }
        if self.active.as_ref().is_some_and(|active| !self.plan.is_chosen(&active.placement)) {
            self.active = None;
        }
        self.second.take_if(|(second, _)| second.placement == *placement);
        self.unavailable.clear();
        was_in_plan
    }

    /// Retires every placement on `device`. Returns whether there was one.
    fn retire_device(&mut self, device: Device, why: &str) -> bool {
        // The active placement last, so that no other on the device replaces it.
        let there =
            self.plan.viable().map(|viable| &viable.placement).filter(|placement| placement.device == device);
        let there: Vec<Placement> = there.cloned().collect();
        for placement in there.iter().rev() {
            self.retire(placement, Obstacle::Quarantined { reason: why.to_owned() });
        }
        !there.is_empty()
    }
}
