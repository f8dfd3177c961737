//! A probe request and its results.

use sconce_core::engine::ModelSpec;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_core::probe::{ProbeCase, Sample};
use serde::{Deserialize, Serialize};

/// Probe cases for one placement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// The model.
    pub spec: ModelSpec,
    /// The placement to probe.
    pub placement: Placement,
    /// The cases, in order.
    pub cases: Vec<ProbeCase>,
    /// Number of CPU threads.
    pub threads: usize,
}

/// Results of the cases, up to the first that stops the run.
pub(crate) type ProbeResults = Vec<Result<Sample, Obstacle>>;

/// Whether a result ends the run. Failed ops do not affect each other. After a timeout, the next result could be the
/// late answer to this case.
pub(super) fn ends_run(case: &ProbeCase, result: &Result<Sample, Obstacle>) -> bool {
    match result {
        Ok(_) => false,
        Err(Obstacle::TimedOut { .. }) => true,
        Err(_) => !matches!(case, ProbeCase::Op { .. }),
    }
}
