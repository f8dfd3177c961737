//! Runs probe cases where a crash does not harm this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sconce_core::engine::Engine;

use super::in_process::InProcessProver;
use super::launch::Launch;
use super::request::{ProbeRequest, ProbeResults};

/// How probe cases run.
pub(crate) enum Prover {
    /// In a child process, which may crash, hang or be killed.
    Child(Launch),
    /// On a thread of this process, for programs that do not call [`init`](crate::init).
    InProcess(InProcessProver),
}

impl Prover {
    /// A prover on a watched thread, with crash markers in `folder`.
    pub(crate) fn in_process(folder: &Path) -> Prover {
        Prover::InProcess(InProcessProver::new(folder))
    }

    /// Runs the cases, each within `time_limit`. Time that threads wait for a CPU does not count, up to four times the
    /// limit in all. Calls `progress` with the number of completed cases.
    pub(crate) fn run(
        &self,
        engine: &Arc<dyn Engine>,
        request: &ProbeRequest,
        time_limit: Duration,
        progress: &mut dyn FnMut(usize),
    ) -> ProbeResults {
        match self {
            Prover::Child(launch) => launch.run(request, time_limit, progress),
            Prover::InProcess(prover) => prover.run(engine, request, time_limit, progress),
        }
    }

    /// Resident memory of the running children in bytes.
    pub(crate) fn resident(&self) -> u64 {
        match self {
            Prover::Child(launch) => launch.resident(),
            Prover::InProcess(_) => 0,
        }
    }
}
