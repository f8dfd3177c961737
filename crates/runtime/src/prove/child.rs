//! The child process: reads a probe request from stdin, and writes one result per case to stdout.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sconce_core::engine::Engine;
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::{ProbeCase, Sample};

use super::request::{ProbeRequest, ends_run};
use crate::device::panic_message;
use crate::memory::resident;

/// Command-line argument of a prover process.
pub const CHILD_ARGUMENT: &str = "__sconce_prove";
/// Prefix of a result line: drivers also print to stdout.
pub(super) const RESULT_PREFIX: &str = "sconce-answer ";

/// Runs the probe request on stdin. `engines` creates the engines for a number of threads. Call it in a process that
/// was started as a prover.
pub fn run_child(engines: impl FnOnce(usize) -> Vec<Arc<dyn Engine>>) {
    let Ok(request) = serde_json::from_reader::<_, ProbeRequest>(io::stdin().lock()) else { return };
    let engines = engines(request.threads);
    let engine = engines.iter().find(|engine| engine.id() == request.placement.engine);
    for case in &request.cases {
        let result = match engine {
            Some(engine) => run_case(engine.as_ref(), &request, case),
            None => Err(Obstacle::engine_not_in_this_version(request.placement.engine)),
        };
        let stop = ends_run(case, &result);
        let line = serde_json::to_string(&result).unwrap_or_default();
        let mut out = io::stdout().lock();
        if writeln!(out, "\n{RESULT_PREFIX}{line}").and_then(|()| out.flush()).is_err() || stop {
            return;
        }
    }
}

/// Runs one case, and catches panics.
pub(super) fn run_case(
    engine: &dyn Engine,
    request: &ProbeRequest,
    case: &ProbeCase,
) -> Result<Sample, Obstacle> {
    let run = AssertUnwindSafe(|| engine.probe(&request.spec, &request.placement, case));
    let mut sample = catch_unwind(run).unwrap_or_else(|panic| {
        Err(Obstacle::Crashed {
            case: case.to_string(),
            cause: format!("panicked: {}", panic_message(&*panic)),
        })
    })?;
    if matches!(case, ProbeCase::Canary { .. }) {
        sample.memory = resident();
    }
    Ok(sample)
}
