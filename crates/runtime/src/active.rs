//! A placement that is proved and loaded, and one batch on it.

use std::sync::Arc;
use std::time::Duration;

use sconce_core::batch::{Batch, Rows};
use sconce_core::device::Device;
use sconce_core::engine::{EngineError, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use sconce_planner::evidence::Canary;
use sconce_planner::plan::Constraints;

use crate::error::Error;
use crate::event::Event;
use crate::executor::{DeviceExecutors, ExecutorError, Loaded};
use crate::fingerprint::hash;
use crate::guard::{Breach, Guard};
use crate::low_level::{Incident, IncidentKind};
use crate::prove::{Depth, canary_subject};
use crate::runtime::Runtime;

/// A hung batch is one that takes this many times what it should.
const HUNG: f64 = 10.0;
/// How long loading may take.
const LOADING: Duration = Duration::from_mins(10);

/// Proves and loads placements of one model. It holds no weights.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(crate) runtime: Runtime,
    pub(crate) subject: Arc<ModelSpec>,
    pub(crate) constraints: Constraints,
    /// The placement that all others are compared with.
    pub(crate) reference: Option<Placement>,
}

/// A placement that is loaded.
pub(crate) struct ActivePlacement {
    pub(crate) placement: Placement,
    pub(crate) loaded: Loaded,
    pub(crate) guard: Guard,
    pub(crate) band: Band,
    pub(crate) class: String,
    pub(crate) tokens_per_second: f64,
}

/// Why a placement is not loaded.
pub(crate) enum Obstructed {
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

impl From<Obstructed> for Obstacle {
    fn from(obstructed: Obstructed) -> Obstacle {
        match obstructed {
            Obstructed::Obstacle(obstacle) => obstacle,
            Obstructed::Error(error) => Obstacle::LoadFailed { says: error.to_string() },
        }
    }
}

/// Why a placement gave no rows that can be answered with.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The placement failed, whatever it was given.
    Placement(IncidentKind, String),
    /// Its device did, and nothing else there is to be tried.
    Device(IncidentKind, String),
    /// There was no memory for this many sequences, or for one this long.
    OutOfMemory(String),
    /// The engine returned an error.
    Engine(String),
    /// The guard rejected the rows of some sequences.
    Rows(Rows, Breach),
    /// The engine rejected the batch.
    Malformed(String),
}

impl Failure {
    /// The kind of mishap and the reason, for a placement that is taken out of service over it.
    pub(crate) fn incident(self, placement: &Placement) -> Incident {
        let (kind, why) = match self {
            Failure::Placement(kind, why) | Failure::Device(kind, why) => (kind, why),
            Failure::OutOfMemory(why) | Failure::Engine(why) | Failure::Malformed(why) => {
                (IncidentKind::Failed, why)
            }
            Failure::Rows(_, breach) => (IncidentKind::Guard, breach.why().to_owned()),
        };
        Incident { placement: placement.clone(), kind, why }
    }
}

impl Loader {
    /// Loads the weights on `placement`, whatever the plan says of it.
    pub(crate) fn load_on(
        &self,
        executors: &DeviceExecutors,
        placement: &Placement,
    ) -> Result<Loaded, Obstacle> {
        let engine = self.runtime.engine(placement)?;
        executors.load(engine, &self.subject, placement, LOADING)
    }

    /// Tries the real weights on a placement and loads them there.
    pub(crate) fn take(
        &self,
        placement: &Placement,
        promised: Option<Band>,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<ActivePlacement, Obstructed> {
        let only = |candidate: &Placement| candidate == placement;
        let survey = self.runtime.survey(&self.subject, Depth::Canary, &only, events).map_err(Box::new)?;
        let found = survey.evidence.get(placement);
        if let Some(obstacle) = found.and_then(|findings| findings.obstacle()) {
            return Err(Obstructed::Obstacle(obstacle.clone()));
        }
        let canary = found.and_then(|findings| findings.canary.clone()).and_then(Result::ok);
        let canary =
            canary.ok_or_else(|| Obstacle::LoadFailed { says: "its canary is missing".to_owned() })?;
        let band = within(&canary, self.reference.as_ref(), promised.unwrap_or(self.constraints.band))?;
        let loaded = self.load_on(&self.runtime.inner.executors, placement)?;
        let subject = canary_subject(&self.subject, &placement.weights);
        Ok(ActivePlacement {
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

    /// One batch on one active, its rows checked by the guard.
    pub(crate) fn attempt(&self, active: &ActivePlacement, batch: &Arc<Batch>) -> Result<Rows, Failure> {
        // Beside others it may have one thread alone.
        let tokens = batch.tokens() * active.loaded.concurrency;
        let timeout = timeout(tokens, active.tokens_per_second, self.runtime.inner.timeout);
        match self.runtime.inner.executors.encode(&active.loaded, batch, timeout) {
            Ok(output) => {
                let rows = output.into_rows();
                match active.guard.check(&rows, batch.output_kind, batch.sequences.len(), batch.tokens()) {
                    None => Ok(rows),
                    Some(Breach::Shape(what)) => Err(Failure::Placement(IncidentKind::Guard, what)),
                    Some(breach) => Err(Failure::Rows(rows, breach)),
                }
            }
            Err(ExecutorError::Engine(EngineError::Malformed(what))) => Err(Failure::Malformed(what)),
            Err(error @ ExecutorError::Engine(EngineError::OutOfMemory(_))) => {
                Err(Failure::OutOfMemory(told(&error)))
            }
            Err(error @ ExecutorError::Engine(EngineError::Failed(_))) => Err(Failure::Engine(told(&error))),
            // A processor that hangs is an engine that hangs: another engine may do.
            Err(error @ ExecutorError::Hung(_)) if active.placement.device != Device::Cpu => {
                Err(Failure::Device(IncidentKind::Hung, told(&error)))
            }
            Err(error @ ExecutorError::Hung(_)) => Err(Failure::Placement(IncidentKind::Hung, told(&error))),
            Err(error @ ExecutorError::Panicked(_)) => {
                Err(Failure::Placement(IncidentKind::Panicked, told(&error)))
            }
            Err(error @ ExecutorError::Gone) => Err(Failure::Placement(IncidentKind::Failed, told(&error))),
        }
    }
}

/// The band of a canary, if the constraints allows it.
pub(crate) fn within(
    canary: &Canary,
    reference: Option<&Placement>,
    constraints: Band,
) -> Result<Band, Obstacle> {
    let band = Band::measured(canary.error, reference);
    band.filter(|band| *band <= constraints).ok_or_else(|| Obstacle::ModelWrong {
        case: "the real weights".to_owned(),
        error: canary.error,
        tolerance: constraints.tolerance(),
    })
}

/// How long `tokens` tokens may take on a placement of this speed before they count as hung: never less than `least`.
fn timeout(tokens: usize, tokens_per_second: f64, least: Duration) -> Duration {
    Duration::from_secs_f64(HUNG * tokens as f64 / tokens_per_second.max(1.0)).max(least)
}

/// An error with all its causes, as one line.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sconce_core::obstacle::Distance;

    use super::*;

    #[test]
    fn a_canary_is_held_to_the_band_that_was_asked_for() {
        let canary = |error: Option<f64>| Canary {
            error: Distance(error),
            accuracy: None,
            tokens_per_second: 1.0,
            memory: None,
            norms: [1.0, 1.0],
            nodes: BTreeMap::new(),
        };
        for (error, band) in [(0.0, Band::Exact), (5e-4, Band::Half), (0.1, Band::Coarse)] {
            for constraints in [Band::Exact, Band::Half, Band::Coarse] {
                let found = within(&canary(Some(error)), None, constraints);
                if band <= constraints {
                    assert_eq!(found, Ok(band), "{error} for {constraints}");
                } else {
                    let obstacle = found.expect_err("it is looser than asked for");
                    assert_eq!(obstacle.code(), "model_wrong", "{error} for {constraints}: {obstacle}");
                    let said = format!("allowed {:.0e}", constraints.tolerance());
                    assert!(obstacle.to_string().contains(&said), "{obstacle}");
                }
            }
        }
        assert!(within(&canary(None), None, Band::Coarse).is_err());
    }

    #[test]
    fn a_batch_is_hung_after_ten_times_what_it_should_take_and_never_before_the_least() {
        let seconds = Duration::from_secs;
        assert_eq!(timeout(1000, 100.0, seconds(5)), seconds(100));
        assert_eq!(timeout(1000, 10_000.0, seconds(5)), seconds(5));
        // A speed that nobody measured is no reason to wait for ever.
        assert_eq!(timeout(10, 0.0, seconds(5)), seconds(100));
    }

    #[test]
    fn an_error_is_told_with_its_causes_on_one_line() {
        let error = ExecutorError::Engine(EngineError::Failed("lost the device\nat driver.c".into()));
        assert_eq!(told(&error), "the engine failed: lost the device");
    }
}
