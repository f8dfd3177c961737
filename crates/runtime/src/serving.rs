//! A batch to the first placement that gives right numbers: each answer is checked, a placement that breaks is
//! taken out of service, and its batch is replayed on the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sconce_core::batch::Batch;
use sconce_core::device::Device;
use sconce_core::engine::{Cost, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use sconce_planner::plan::{Constraints, Downgrade, Plan, Refusal, Viable, plan};

use crate::active::{ActivePlacement, Failure, Loader, Obstructed};
use crate::attribution::{Answered, Parts};
use crate::contents::concerns;
use crate::error::Error;
use crate::event::Event;
use crate::low_level::{Computed, Incident};
use crate::prove::{Depth, Survey};
use crate::readmission::{Readmission, Readmitted};
use crate::runtime::Runtime;
use crate::shadow::Watch;

/// Downgrades that are kept for whoever asks.
const UNTOLD: usize = 64;
/// A placement that was loaded for second opinions is unloaded after this long without one.
const IDLE: Duration = Duration::from_mins(1);

/// A model on its placements.
pub(crate) struct Serving {
    loader: Loader,
    /// A text that every viable placement computes well: what fails on it is at fault itself.
    control: Batch,
    state: Mutex<State>,
    /// Held while a placement is proved and loaded, which may take minutes: the state stays free meanwhile.
    taking: Mutex<()>,
    watch: Watch,
}

pub(crate) struct State {
    pub(crate) plan: Plan,
    pub(crate) active: Option<Arc<ActivePlacement>>,
    /// Another placement, for second opinions, and when it last gave one.
    pub(crate) second: Option<(Arc<ActivePlacement>, Instant)>,
    /// What could not be loaded for second opinions beside the placement that serves.
    pub(crate) unavailable: Vec<Placement>,
    /// The band of the first answer given: later ones lie no farther from the reference.
    promised: Option<Band>,
    /// What was taken out of service, and may return.
    pub(crate) quarantined: Vec<Viable>,
    /// Downgrades that nobody has asked for yet, the latest ones.
    untold: Vec<Downgrade>,
    /// What was taken out of service over batches, until it is taken note of.
    incidents: Vec<Incident>,
}

impl Serving {
    /// Plans by what is known or found now, and loads the first placement that passes its canary.
    pub(crate) fn open(
        runtime: &Runtime,
        subject: Arc<ModelSpec>,
        control: Batch,
        constraints: Constraints,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Serving, Error> {
        let Survey { grid, evidence, .. } =
            runtime.survey(&subject, Depth::Twin, &|placement| constraints.admits(placement), events)?;
        let plan = plan(&subject.card, &grid, &evidence, &constraints);
        let (reference, untold) = (plan.reference.clone(), plan.downgrades.clone());
        let state = Mutex::new(State {
            plan,
            active: None,
            second: None,
            unavailable: Vec::new(),
            promised: None,
            quarantined: Vec::new(),
            untold,
            incidents: Vec::new(),
        });
        let loader = Loader { runtime: runtime.clone(), subject, constraints, reference };
        let serving = Serving { loader, control, state, taking: Mutex::new(()), watch: Watch::default() };
        serving.active(events)?;
        Ok(serving)
    }

    pub(crate) fn subject(&self) -> &ModelSpec {
        &self.loader.subject
    }

    pub(crate) fn loader(&self) -> &Loader {
        &self.loader
    }

    pub(crate) fn control(&self) -> &Batch {
        &self.control
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The band of `placement`, if it serves now.
    pub(crate) fn band_of(&self, placement: &Placement) -> Option<Band> {
        let state = self.lock();
        state.active.as_ref().filter(|active| active.placement == *placement).map(|active| active.band)
    }

    /// Takes `placement` out of service.
    pub(crate) fn demote(&self, placement: &Placement, why: &str) {
        self.lock().retire(placement, Obstacle::Quarantined { why: why.to_owned() });
    }

    /// The downgrades since this was last called.
    pub(crate) fn drain_downgrades(&self) -> Vec<Downgrade> {
        std::mem::take(&mut self.lock().untold)
    }

    /// Retires every placement that has loaded `file`, whose content is not what its hash says.
    pub(crate) fn refuse_content(&self, file: &str) {
        let concerned = |viable: &Viable| concerns(self.subject(), file, &viable.placement.weights);
        let mut state = self.lock();
        state.quarantined.retain(|viable| !concerned(viable));
        let there = state.plan.viable().filter(|viable| concerned(viable));
        let there: Vec<Placement> = there.map(|viable| viable.placement.clone()).collect();
        // The chosen one last, so that no other of the same file takes over from it.
        for placement in there.iter().rev() {
            state.retire(placement, Obstacle::ContentChanged { file: file.to_owned() });
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        self.lock().plan.clone()
    }

    /// What batches cost on the placement that serves now.
    pub(crate) fn cost(&self) -> Cost {
        self.lock().active.as_ref().map_or(Cost::Packed, |active| active.loaded.cost)
    }

    /// How many batches at once keep the placement that serves now busy.
    pub(crate) fn concurrency(&self) -> usize {
        self.lock().active.as_ref().map_or(1, |active| active.loaded.concurrency)
    }

    /// The numerics class of what is computed now.
    pub(crate) fn class(&self) -> Option<String> {
        self.lock().active.as_ref().map(|active| active.class.clone())
    }

    /// What was taken out of service.
    pub(crate) fn quarantined(&self) -> Vec<Placement> {
        self.lock().quarantined.iter().map(|viable| viable.placement.clone()).collect()
    }

    /// Why no placement serves: what became of the last one. None while one does.
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

    /// What was taken out of service over batches since this was last asked.
    pub(crate) fn take_incidents(&self) -> Vec<Incident> {
        std::mem::take(&mut self.lock().incidents)
    }

    /// The way back of a placement that was taken out of service.
    pub(crate) fn readmission(&self, placement: &Placement) -> Option<Readmission> {
        let state = self.lock();
        let viable = state.quarantined.iter().find(|viable| viable.placement == *placement)?;
        Some(Readmission::new(self.loader.clone(), viable.clone(), state.promised))
    }

    /// Puts a placement that is right again back to its place in the plan.
    pub(crate) fn admit(&self, readmitted: Readmitted) {
        let Readmitted { viable, active } = readmitted;
        let mut state = self.lock();
        let before = state.quarantined.len();
        state.quarantined.retain(|quarantined| quarantined.placement != viable.placement);
        if state.quarantined.len() == before {
            return;
        }
        let promised = state.promised;
        state.plan.restore(viable, promised);
        if state.plan.is_chosen(&active.placement) {
            state.active = Some(Arc::new(active));
        }
    }

    pub(crate) fn taking(&self) -> &Mutex<()> {
        &self.taking
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes `batch` on the first placement that works. Sequences that it fails on alone are left to a second opinion.
    pub(crate) fn compute_each(&self, batch: &Arc<Batch>) -> Result<Answered, Error> {
        let mut incidents = Vec::new();
        loop {
            let active = self.active(&mut |_| {})?;
            let mut parts = Parts::default();
            if let Err(failure) = self.isolate(&active, batch, &mut parts) {
                incidents.push(self.retire(&active.placement, failure));
                continue;
            }
            let idle = {
                let mut state = self.lock();
                state.promised.get_or_insert(active.band);
                state.second.take_if(|(_, used)| used.elapsed() > IDLE)
            };
            drop(idle);
            let Parts { rows, refused, suspects, splits, .. } = parts;
            let (placement, class) = (active.placement.clone(), active.class.clone());
            let computed = Computed { rows, placement, class, incidents, splits };
            return Ok(Answered { computed, refused, suspects });
        }
    }

    /// Takes a placement out of service, or all of its device.
    pub(crate) fn retire(&self, placement: &Placement, failure: Failure) -> Incident {
        let whole_device = matches!(failure, Failure::Device(..));
        let incident = failure.incident(placement);
        let mut state = self.lock();
        let retired = if whole_device {
            state.retire_device(placement.device, &incident.why)
        } else {
            state.retire(placement, Obstacle::Quarantined { why: incident.why.clone() })
        };
        if retired {
            state.incidents.push(incident.clone());
        }
        incident
    }

    /// The active that serves, taking the next placement of the plan where none does.
    fn active(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<Arc<ActivePlacement>, Error> {
        if let Some(active) = &self.lock().active {
            return Ok(Arc::clone(active));
        }
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (chosen, promised) = {
                let state = self.lock();
                match (&state.active, &state.plan.chosen) {
                    (Some(active), _) => return Ok(Arc::clone(active)),
                    (None, Some(chosen)) => (chosen.clone(), state.promised),
                    (None, None) => {
                        let (plan, constraints) =
                            (Box::new(state.plan.clone()), Box::new(self.loader.constraints.clone()));
                        return Err(Error::NoPlacement { plan, constraints });
                    }
                }
            };
            let second = self.lock().second.take_if(|(second, _)| second.placement == chosen.placement);
            let taken = match second {
                Some((second, _)) => Ok(second),
                None => self.loader.take(&chosen.placement, promised, events).map(Arc::new),
            };
            let mut state = self.lock();
            match taken {
                // It may have been retired with its device meanwhile.
                Ok(active) if state.plan.is_chosen(&active.placement) => state.active = Some(active),
                Ok(_) => {}
                Err(Obstructed::Obstacle(obstacle)) => {
                    state.retire(&chosen.placement, obstacle);
                }
                Err(Obstructed::Error(error)) => return Err(*error),
            }
        }
    }
}

impl State {
    /// Takes `placement` out of the plan and lets the next take over. Returns whether it was in the plan.
    fn retire(&mut self, placement: &Placement, obstacle: Obstacle) -> bool {
        let returns = matches!(obstacle, Obstacle::Quarantined { .. });
        let served = self.plan.is_chosen(placement);
        let retired = self.plan.retire(placement, obstacle, self.promised);
        let was_in_plan = retired.is_some();
        self.quarantined.extend(retired.filter(|_| returns));
        if served {
            self.untold.extend(self.plan.downgrades.last().cloned());
            let surplus = self.untold.len().saturating_sub(UNTOLD);
            self.untold.drain(..surplus);
        }
        if self.active.as_ref().is_some_and(|active| !self.plan.is_chosen(&active.placement)) {
            self.active = None;
        }
        self.second.take_if(|(second, _)| second.placement == *placement);
        self.unavailable.clear();
        was_in_plan
    }

    /// Takes every placement on `device` out of the plan. Returns whether there was one.
    fn retire_device(&mut self, device: Device, why: &str) -> bool {
        // The chosen one last, so that nothing else on the device takes over from it.
        let there =
            self.plan.viable().map(|viable| &viable.placement).filter(|placement| placement.device == device);
        let there: Vec<Placement> = there.cloned().collect();
        for placement in there.iter().rev() {
            self.retire(placement, Obstacle::Quarantined { why: why.to_owned() });
        }
        !there.is_empty()
    }
}
