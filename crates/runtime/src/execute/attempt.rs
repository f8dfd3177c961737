//! One batch on one placement, checked by the guard.

use std::sync::Arc;
use std::time::Duration;

use sconce_core::batch::{Batch, Output, Rows};
use sconce_core::device::Device;
use sconce_core::engine::EngineError;
use sconce_core::placement::Placement;
use tracing::debug_span;

use super::guard::Breach;
use super::loader::{ActivePlacement, Loader};
use super::outcome::{BatchOutput, Delivery, Incident, IncidentKind};
use crate::device::ExecutorError;

/// A batch counts as hung after this multiple of its expected time.
const HANG_FACTOR: f64 = 10.0;

/// Why a placement returned no valid rows.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The placement failed, independent of the input.
    Placement(IncidentKind, String),
    /// The device failed, with all its placements.
    Device(IncidentKind, String),
    /// Out of memory for this number or length of sequences.
    OutOfMemory(String),
    /// The engine returned an error.
    Engine(String),
    /// The guard rejected the rows of some sequences.
    Rows(Rows, Breach),
    /// The engine rejected the batch.
    Malformed(String),
}

impl Failure {
    /// The incident of a placement that is quarantined for this failure.
    pub(super) fn incident(self, placement: &Placement) -> Incident {
        let (kind, why) = match self {
            Failure::Placement(kind, why) | Failure::Device(kind, why) => (kind, why),
            Failure::OutOfMemory(why) | Failure::Engine(why) | Failure::Malformed(why) => {
                (IncidentKind::Failed, why)
            }
            Failure::Rows(_, breach) => (IncidentKind::Guard, breach.why().to_owned()),
        };
        Incident { placement: placement.clone(), kind, why }
    }

    /// The failure behind an executor's error on `device`.
    pub(super) fn of(error: &ExecutorError, device: Device) -> Failure {
        let why = error_chain(error);
        match error {
            ExecutorError::Engine(EngineError::Malformed(what)) => Failure::Malformed(what.clone()),
            ExecutorError::Engine(EngineError::OutOfMemory(_)) => Failure::OutOfMemory(why),
            ExecutorError::Engine(EngineError::Failed(_)) => Failure::Engine(why),
            // On the CPU only the engine hangs: another engine may work.
            ExecutorError::Hung(_) if device != Device::Cpu => Failure::Device(IncidentKind::Hung, why),
            ExecutorError::Hung(_) => Failure::Placement(IncidentKind::Hung, why),
            ExecutorError::Panicked(_) => Failure::Placement(IncidentKind::Panicked, why),
            ExecutorError::Gone => Failure::Placement(IncidentKind::Failed, why),
        }
    }
}

impl Loader {
    /// Computes a batch on a placement and checks the rows.
    pub(super) fn attempt(&self, active: &ActivePlacement, batch: &Arc<Batch>) -> Result<Rows, Failure> {
        self.attempt_and_deliver(active, batch, None)
    }

    /// Computes a batch on a placement, checks the rows, and delivers them if all are valid.
    pub(super) fn attempt_and_deliver(
        &self,
        active: &ActivePlacement,
        batch: &Arc<Batch>,
        delivery: Option<&Delivery>,
    ) -> Result<Rows, Failure> {
        // Beside concurrent batches it may have a single thread.
        let tokens = batch.tokens() * active.loaded.concurrency;
        let timeout = timeout(tokens, active.tokens_per_second, self.runtime.inner.min_timeout);
        let _span = debug_span!("engine", placement = %active.placement, tokens = batch.tokens()).entered();
        let (guard, kind, sequences, tokens) =
            (active.guard, batch.output_kind, batch.sequences.len(), batch.tokens());
        let (placement, class) = (active.placement.clone(), active.class.clone());
        let own_delivery = delivery.cloned();
        let check = move |output: Output| {
            let rows = output.into_rows();
            let breach = guard.check(&rows, kind, sequences, tokens);
            match own_delivery.filter(|_| breach.is_none()) {
                None => (rows, breach),
                Some(delivery) => {
                    let output = BatchOutput { rows, placement, class, incidents: Vec::new(), splits: 0 };
                    delivery.call(&output);
                    (output.rows, None)
                }
            }
        };
        let abandon = || delivery.is_none_or(Delivery::take_back);
        let executors = &self.runtime.inner.executors;
        let error = match executors.encode_then(&active.loaded, batch, timeout, check, abandon) {
            Ok((rows, None)) => return Ok(rows),
            Ok((_, Some(Breach::Shape(what)))) => return Err(Failure::Placement(IncidentKind::Guard, what)),
            Ok((rows, Some(breach))) => return Err(Failure::Rows(rows, breach)),
            Err(error) => error,
        };
        Err(Failure::of(&error, active.placement.device))
    }
}

/// Time after which a batch of `tokens` tokens counts as hung, at least `min`.
pub(super) fn timeout(tokens: usize, tokens_per_second: f64, min: Duration) -> Duration {
    Duration::from_secs_f64(HANG_FACTOR * tokens as f64 / tokens_per_second.max(1.0)).max(min)
}

/// An error and its sources on one line.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
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
    use super::*;

    #[test]
    fn a_batch_is_hung_after_ten_times_its_expected_time_and_never_before_the_minimum() {
        let seconds = Duration::from_secs;
        assert_eq!(timeout(1000, 100.0, seconds(5)), seconds(100));
        assert_eq!(timeout(1000, 10_000.0, seconds(5)), seconds(5));
        // An unmeasured speed must not disable the timeout.
        assert_eq!(timeout(10, 0.0, seconds(5)), seconds(100));
    }

    #[test]
    fn a_hang_is_that_of_the_engine_on_the_cpu_and_that_of_the_device_elsewhere() {
        let hung = ExecutorError::Hung(5.0);
        for device in [Device::METAL, Device::CUDA] {
            assert!(matches!(Failure::of(&hung, device), Failure::Device(IncidentKind::Hung, _)), "{device}");
        }
        assert!(matches!(Failure::of(&hung, Device::Cpu), Failure::Placement(IncidentKind::Hung, _)));
    }

    #[test]
    fn an_error_and_its_sources_are_one_line() {
        let error = ExecutorError::Engine(EngineError::Failed("lost the device\nat driver.c".into()));
        assert_eq!(error_chain(&error), "the engine failed: lost the device");
    }
}
