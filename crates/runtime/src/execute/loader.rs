//! Proves and loads the placements of a model.

use std::sync::Arc;
use std::time::Duration;

use sconce_core::engine::ModelSpec;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, Placement};
use sconce_planner::band::Band;
use sconce_planner::evidence::Canary;
use sconce_planner::plan::Constraints;
use tracing::info_span;

use super::guard::Guard;
use crate::card::contents::Stamps;
use crate::device::{DeviceExecutors, Loaded};
use crate::error::Error;
use crate::event::Event;
use crate::prove::{ProofDepth, numerics_class};
use crate::runtime::Runtime;

/// Timeout of loading a model.
const LOAD_TIMEOUT: Duration = Duration::from_mins(10);

/// Proves and loads placements of one model. It holds no weights.
#[derive(Clone)]
pub(crate) struct Loader {
    pub(super) runtime: Runtime,
    pub(super) spec: Arc<ModelSpec>,
    pub(super) constraints: Constraints,
    /// The placement that all others are compared with.
    pub(super) reference: Option<Placement>,
    /// The files when `spec` was made.
    pub(super) stamps: Stamps,
}

/// A loaded placement.
pub(crate) struct ActivePlacement {
    pub(super) placement: Placement,
    pub(super) loaded: Loaded,
    pub(super) guard: Guard,
    pub(super) band: Band,
    /// Numerics class.
    pub(super) class: String,
    pub(super) tokens_per_second: f64,
}

/// Why a placement could not be loaded.
pub(crate) enum LoadError {
    Obstacle(Obstacle),
    Error(Box<Error>),
}

impl From<Obstacle> for LoadError {
    fn from(obstacle: Obstacle) -> LoadError {
        LoadError::Obstacle(obstacle)
    }
}

impl From<Box<Error>> for LoadError {
    fn from(error: Box<Error>) -> LoadError {
        LoadError::Error(error)
    }
}

impl From<LoadError> for Obstacle {
    fn from(error: LoadError) -> Obstacle {
        match error {
            LoadError::Obstacle(obstacle) => obstacle,
            LoadError::Error(error) => Obstacle::LoadFailed { reason: error.to_string() },
        }
    }
}

impl Loader {
    /// Loads the weights on `placement`, without evidence.
    pub(super) fn load(
        &self,
        executors: &DeviceExecutors,
        placement: &Placement,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Loaded, Obstacle> {
        let engine = self.runtime.engine(placement)?;
        let _span = info_span!("load", model = self.spec.card.name, %placement).entered();
        let mut progress = |done, total| events(Event::Loading { placement, done, total });
        executors.load(engine, &self.spec, placement, LOAD_TIMEOUT, &mut progress)
    }

    /// Whether the files of a placement are those of the model that was opened. Placements may be loaded days later.
    fn check_contents(&self, placement: &Placement) -> Result<(), Obstacle> {
        let changed = self.runtime.inner.contents.changed(&self.spec, &self.stamps, &placement.weights);
        changed.map_or(Ok(()), |file| Err(Obstacle::ContentChanged { file }))
    }

    /// Proves the real weights on `placement`, within `band` if given, and loads them.
    pub(super) fn prove_and_load(
        &self,
        placement: &Placement,
        band: Option<Band>,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<ActivePlacement, LoadError> {
        self.check_contents(placement)?;
        let only = |candidate: &Placement| candidate == placement;
        let gathered = self.runtime.gather_evidence(&self.spec, ProofDepth::Canary, &only, events);
        let gathered = gathered.map_err(Box::new)?;
        let findings = gathered.evidence.get(placement);
        if let Some(obstacle) = findings.and_then(|findings| findings.obstacle()) {
            return Err(LoadError::Obstacle(obstacle.clone()));
        }
        let canary = findings.and_then(|findings| findings.canary.clone()).and_then(Result::ok);
        let canary =
            canary.ok_or_else(|| Obstacle::LoadFailed { reason: "its canary is missing".to_owned() })?;
        let allowed = band.unwrap_or(self.constraints.band);
        let band = within(&canary, placement.dtype, self.reference.as_ref(), allowed)?;
        let loaded = self.load(&self.runtime.inner.executors, placement, events)?;
        // What was proved is what was loaded.
        self.check_contents(placement)?;
        Ok(ActivePlacement {
            placement: placement.clone(),
            loaded,
            guard: Guard {
                task: self.spec.card.task.value,
                width: self.spec.card.width(),
                hidden: self.spec.card.sizes.value.hidden,
                norms: canary.norms,
            },
            band,
            class: numerics_class(&self.spec, &placement.weights, band),
            tokens_per_second: canary.tokens_per_second,
        })
    }
}

/// The band of a canary, if it is at most `allowed`.
pub(super) fn within(
    canary: &Canary,
    dtype: Dtype,
    reference: Option<&Placement>,
    allowed: Band,
) -> Result<Band, Obstacle> {
    let band = canary.band(dtype, reference);
    band.filter(|band| *band <= allowed).ok_or_else(|| Obstacle::ModelWrong {
        case: match canary.predictions(dtype) {
            Some(predictions) => format!("the real weights ({predictions})"),
            None => "the real weights".to_owned(),
        },
        error: canary.error,
        tolerance: allowed.tolerance(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sconce_core::obstacle::Distance;
    use sconce_planner::accuracy::{AccuracyMetric, AccuracyReport};

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
            for allowed in [Band::Exact, Band::Half, Band::Coarse] {
                let found = within(&canary(Some(error)), Dtype::F32, None, allowed);
                if band <= allowed {
                    assert_eq!(found, Ok(band), "{error} for {allowed}");
                } else {
                    let obstacle = found.expect_err("it is looser than asked for");
                    assert_eq!(obstacle.code(), "model_wrong", "{error} for {allowed}: {obstacle}");
                    let said = format!("allowed {:.0e}", allowed.tolerance());
                    assert!(obstacle.to_string().contains(&said), "{obstacle}");
                }
            }
        }
        assert!(within(&canary(None), Dtype::F32, None, Band::Coarse).is_err());
    }

    #[test]
    fn quantized_weights_that_predict_otherwise_are_refused_with_their_predictions() {
        let metric = AccuracyMetric::Predictions {
            tokens: 300,
            perplexity: 70.0,
            reference_perplexity: 50.0,
            top1_agreement: 0.7,
        };
        let accuracy = Some(AccuracyReport { texts: 8, metric, rank_correlation: 0.9 });
        let canary = Canary {
            error: Distance(Some(5e-4)),
            accuracy,
            tokens_per_second: 1.0,
            memory: None,
            norms: [1.0, 1.0],
            nodes: BTreeMap::new(),
        };
        assert_eq!(within(&canary, Dtype::Bf16, None, Band::Half), Ok(Band::Half));
        let obstacle = within(&canary, Dtype::Int4, None, Band::Half).expect_err("it predicts other tokens");
        let said =
            "wrong at the real weights (perplexity 70.000 against 50.000, the same top token at 70.0 %";
        assert!(obstacle.to_string().starts_with(said), "{obstacle}");
    }
}
