//! A batch to the first placement that gives right numbers: each answer is checked, a placement that breaks is
//! taken out of service, and its batch is replayed on the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sconce_core::batch::{Batch, Rows, Want};
use sconce_core::device::Device;
use sconce_core::engine::{Cost, EngineError, Subject};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use sconce_planner::evidence::Canary;
use sconce_planner::plan::{Plan, Sound, Wish, plan};

use crate::door::{Computed, Incident, Trip};
use crate::error::Error;
use crate::event::Event;
use crate::fingerprint::hash;
use crate::guard::Guard;
use crate::lane::{LaneError, Lanes, Loaded};
use crate::prove::{Depth, Survey, canary_subject};
use crate::runtime::Runtime;
use crate::shadow::Watch;

/// A hung batch is one that takes this many times what it should.
const HUNG: f64 = 10.0;
/// How long loading may take.
const LOADING: Duration = Duration::from_mins(10);

/// A model on its placements.
pub(crate) struct Serving {
    runtime: Runtime,
    subject: Arc<Subject>,
    wish: Wish,
    state: Mutex<State>,
    /// Held while a placement is proved and loaded, which may take minutes: the state stays free meanwhile.
    taking: Mutex<()>,
    watch: Watch,
}

struct State {
    plan: Plan,
    seat: Option<Arc<Seat>>,
    /// The band of the first answer given: later ones lie no farther from the reference.
    promised: Option<Band>,
    /// What was taken out of service, and may return.
    quarantined: Vec<Sound>,
}

/// The placement that serves now.
struct Seat {
    placement: Placement,
    loaded: Loaded,
    guard: Guard,
    band: Band,
    class: String,
    tokens_per_second: f64,
}

/// Why a seat gave no rows.
enum Failure {
    /// The placement is at fault: the next may do better.
    Placement(Trip, String),
    /// Its device is, and nothing else there is to be tried.
    Device(Trip, String),
    /// The batch itself can't be computed anywhere.
    Batch(String),
}

impl Serving {
    /// Plans by what is known or found now, and loads the first placement that passes its canary.
    pub(crate) fn open(
        runtime: &Runtime,
        subject: Arc<Subject>,
        wish: Wish,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Serving, Error> {
        let Survey { grid, evidence, .. } =
            runtime.survey(&subject, Depth::Twin, &|placement| wish.admits(placement), events)?;
        let plan = plan(&subject.card, &grid, &evidence, &wish);
        let state = Mutex::new(State { plan, seat: None, promised: None, quarantined: Vec::new() });
        let (runtime, taking, watch) = (runtime.clone(), Mutex::new(()), Watch::default());
        let serving = Serving { runtime, subject, wish, state, taking, watch };
        serving.seat(events)?;
        Ok(serving)
    }

    pub(crate) fn subject(&self) -> &Subject {
        &self.subject
    }

    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The band of `placement`, if it serves now.
    pub(crate) fn band_of(&self, placement: &Placement) -> Option<Band> {
        let state = self.lock();
        state.seat.as_ref().filter(|seat| seat.placement == *placement).map(|seat| seat.band)
    }

    /// Takes `placement` out of service.
    pub(crate) fn demote(&self, placement: &Placement, why: &str) {
        self.lock().retire(placement, Obstacle::Quarantined { why: why.to_owned() });
    }

    /// Loads the weights on `placement`, whatever the plan says of it.
    pub(crate) fn load_on(&self, lanes: &Lanes, placement: &Placement) -> Result<Loaded, Obstacle> {
        let engine = self.runtime.engine(placement)?;
        lanes.load(engine, &self.subject, placement, LOADING)
    }

    pub(crate) fn plan(&self) -> Plan {
        self.lock().plan.clone()
    }

    /// What batches cost on the placement that serves now.
    pub(crate) fn cost(&self) -> Cost {
        self.lock().seat.as_ref().map_or(Cost::Packed, |seat| seat.loaded.cost)
    }

    /// How many batches at once keep the placement that serves now busy.
    pub(crate) fn hands(&self) -> usize {
        self.lock().seat.as_ref().map_or(1, |seat| seat.loaded.hands)
    }

    /// The numerics class of what is computed now.
    pub(crate) fn class(&self) -> Option<String> {
        self.lock().seat.as_ref().map(|seat| seat.class.clone())
    }

    /// What was taken out of service.
    pub(crate) fn quarantined(&self) -> Vec<Placement> {
        self.lock().quarantined.iter().map(|sound| sound.placement.clone()).collect()
    }

    /// Tries the real weights anew on a placement that was taken out of service. Where they are right again it
    /// returns to its place in the plan, loaded before anybody waits for it.
    pub(crate) fn readmit(&self, placement: &Placement) -> Result<(), Obstacle> {
        let of_it = |sound: &Sound| sound.placement == *placement;
        let Some(sound) = self.lock().quarantined.iter().find(|sound| of_it(sound)).cloned() else {
            return Ok(());
        };
        let wish = self.lock().promised.unwrap_or(self.wish.band);
        within(&self.runtime.try_anew(&self.subject, placement)?, wish)?;
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let promised = self.lock().promised;
        let seat = self.take(&sound, promised, &mut |_| {}).map_err(|obstructed| match obstructed {
            Obstructed::Obstacle(obstacle) => obstacle,
            Obstructed::Error(error) => Obstacle::LoadFailed { says: error.to_string() },
        })?;
        let mut state = self.lock();
        state.quarantined.retain(|sound| !of_it(sound));
        state.plan.restore(sound, promised);
        if state.plan.is_chosen(placement) {
            state.seat = Some(Arc::new(seat));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Computes `batch` on the first placement that does it right.
    pub(crate) fn compute(&self, batch: &Arc<Batch>) -> Result<Computed, Error> {
        let mut incidents = Vec::new();
        loop {
            let seat = self.seat(&mut |_| {})?;
            let mut splits = 0;
            let (kind, why) = match self.attempt(&seat, batch, &mut splits) {
                Ok(rows) => {
                    self.lock().promised.get_or_insert(seat.band);
                    let (placement, class) = (seat.placement.clone(), seat.class.clone());
                    return Ok(Computed { rows, placement, class, incidents, splits });
                }
                Err(Failure::Batch(what)) => return Err(Error::Request(what)),
                Err(Failure::Placement(kind, why)) => {
                    self.lock().retire(&seat.placement, Obstacle::Quarantined { why: why.clone() });
                    (kind, why)
                }
                Err(Failure::Device(kind, why)) => {
                    self.lock().retire_device(seat.placement.device, &why);
                    (kind, why)
                }
            };
            incidents.push(Incident { placement: seat.placement.clone(), kind, why });
        }
    }

    /// One batch on one seat; what is too large for its memory is split.
    fn attempt(&self, seat: &Seat, batch: &Arc<Batch>, splits: &mut usize) -> Result<Rows, Failure> {
        let count = batch.sequences.len();
        // Beside others it may have one thread alone.
        let tokens = (batch.tokens() * seat.loaded.hands) as f64;
        let expected = Duration::from_secs_f64(HUNG * tokens / seat.tokens_per_second.max(1.0));
        let patience = expected.max(self.runtime.inner.patience);
        match self.runtime.inner.lanes.encode(&seat.loaded, batch, patience) {
            Ok(output) => {
                let rows = output.into_rows();
                let breach = match batch.want {
                    Want::Pooled => seat.guard.breach(&rows, count),
                    Want::Projected => seat.guard.breach(&rows, batch.tokens()),
                    Want::Tokens => seat.guard.breach_of_states(&rows, batch.tokens()),
                };
                match breach {
                    Some(what) => Err(Failure::Placement(Trip::Guard, what)),
                    None => Ok(rows),
                }
            }
            Err(LaneError::Engine(EngineError::OutOfMemory(_))) if count > 1 => {
                *splits += 1;
                let mut rows = self.attempt(seat, &Arc::new(batch.part(0..count / 2)), splits)?;
                let rest = self.attempt(seat, &Arc::new(batch.part(count / 2..count)), splits)?;
                rows.values.extend(rest.values);
                rows.norms.extend(rest.norms);
                Ok(rows)
            }
            Err(LaneError::Engine(EngineError::Malformed(what))) => Err(Failure::Batch(what)),
            // A processor that hangs is an engine that hangs: another engine may do.
            Err(error @ LaneError::Hung(_)) if seat.placement.device != Device::Cpu => {
                Err(Failure::Device(Trip::Hung, told(&error)))
            }
            Err(error) => Err(Failure::Placement(trip(&error), told(&error))),
        }
    }

    /// The seat that serves, taking the next placement of the plan where none does.
    fn seat(&self, events: &mut dyn FnMut(Event<'_>)) -> Result<Arc<Seat>, Error> {
        if let Some(seat) = &self.lock().seat {
            return Ok(Arc::clone(seat));
        }
        let _one_at_a_time = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (chosen, promised) = {
                let state = self.lock();
                match (&state.seat, &state.plan.chosen) {
                    (Some(seat), _) => return Ok(Arc::clone(seat)),
                    (None, Some(chosen)) => (chosen.clone(), state.promised),
                    (None, None) => {
                        return Err(Error::NoPlacement { plan: Box::new(state.plan.clone()) });
                    }
                }
            };
            let taken = self.take(&chosen, promised, events);
            let mut state = self.lock();
            match taken {
                // It may have been retired with its device meanwhile.
                Ok(seat) if state.plan.is_chosen(&seat.placement) => state.seat = Some(Arc::new(seat)),
                Ok(_) => {}
                Err(Obstructed::Obstacle(obstacle)) => state.retire(&chosen.placement, obstacle),
                Err(Obstructed::Error(error)) => return Err(*error),
            }
        }
    }

    /// Tries the real weights on a placement and loads them there.
    fn take(
        &self,
        sound: &Sound,
        promised: Option<Band>,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Seat, Obstructed> {
        let placement = &sound.placement;
        let only = |candidate: &Placement| candidate == placement;
        let survey = self.runtime.survey(&self.subject, Depth::Canary, &only, events).map_err(Box::new)?;
        let found = survey.evidence.get(placement);
        if let Some(obstacle) = found.and_then(|findings| findings.obstacle()) {
            return Err(Obstructed::Obstacle(obstacle.clone()));
        }
        let canary = found.and_then(|findings| findings.canary.clone()).and_then(Result::ok);
        let canary =
            canary.ok_or_else(|| Obstacle::LoadFailed { says: "its canary is missing".to_owned() })?;
        let band = within(&canary, promised.unwrap_or(self.wish.band))?;
        let loaded = self.load_on(&self.runtime.inner.lanes, placement)?;
        let subject = canary_subject(&self.subject, &placement.weights);
        Ok(Seat {
            placement: placement.clone(),
            loaded,
            guard: Guard {
                task: self.subject.card.task.value,
                width: self.subject.card.width(),
                hidden: self.subject.card.sizes.value.hidden,
                norms: canary.norms,
            },
            band,
            class: format!("{}-{band}", &hash(&subject)[..12]),
            tokens_per_second: canary.tokens_per_second,
        })
    }
}

/// The band of a canary, if the wish allows it.
fn within(canary: &Canary, wish: Band) -> Result<Band, Obstacle> {
    Band::of(canary.error).filter(|band| *band <= wish).ok_or_else(|| Obstacle::ModelWrong {
        case: "the real weights".to_owned(),
        error: canary.error,
        tolerance: wish.tolerance(),
    })
}

enum Obstructed {
    Obstacle(Obstacle),
    Error(Box<Error>),
}

impl From<Obstacle> for Obstructed {
    fn from(obstacle: Obstacle) -> Obstructed {
        Obstructed::Obstacle(obstacle)
    }
}

impl From<Box<Error>> for Obstructed {
    fn from(error: Box<Error>) -> Obstructed {
        Obstructed::Error(error)
    }
}

impl State {
    /// Takes `placement` out of the plan and lets the next take over.
    fn retire(&mut self, placement: &Placement, obstacle: Obstacle) {
        let returns = matches!(obstacle, Obstacle::Quarantined { .. });
        let retired = self.plan.retire(placement, obstacle, self.promised);
        self.quarantined.extend(retired.filter(|_| returns));
        if self.seat.as_ref().is_some_and(|seat| !self.plan.is_chosen(&seat.placement)) {
            self.seat = None;
        }
    }

    /// Takes every placement on `device` out of the plan.
    fn retire_device(&mut self, device: Device, why: &str) {
        // The chosen one last, so that nothing else on the device takes over from it.
        let there =
            self.plan.sound().map(|sound| &sound.placement).filter(|placement| placement.device == device);
        let there: Vec<Placement> = there.cloned().collect();
        for placement in there.iter().rev() {
            self.retire(placement, Obstacle::Quarantined { why: why.to_owned() });
        }
    }
}

/// What kind of mishap an error of a lane is.
fn trip(error: &LaneError) -> Trip {
    match error {
        LaneError::Engine(_) | LaneError::Gone => Trip::Failed,
        LaneError::Panicked(_) => Trip::Panicked,
        LaneError::Hung(_) => Trip::Hung,
    }
}

/// An error with all its causes, as one line.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}
