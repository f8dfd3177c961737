//! Results of a batch, and incidents of placements.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_core::batch::{Batch, Rows};
use sconce_core::placement::Placement;
use sconce_planner::band::Band;
use serde::Serialize;

use crate::error::SequenceError;

/// Output rows of a batch, with their provenance.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchOutput {
    /// The rows, as [`Batch::output_kind`] requests.
    pub rows: Rows,
    /// The placement that computed them.
    pub placement: Placement,
    /// Numerics class of the rows.
    pub class: String,
    /// Placements that were quarantined during this batch.
    pub incidents: Vec<Incident>,
    /// How often the batch was split for lack of memory.
    pub splits: usize,
}

/// Receives the output of a batch on the thread that computed it, before the caller is woken.
pub type OnOutput = Box<dyn FnOnce(&BatchOutput) + Send>;

/// An [`OnOutput`] that is called once, or taken back by the caller of a batch that hangs. The lock is held during the
/// call: whoever finds it empty knows that the call has returned.
#[derive(Clone, Default)]
pub(super) struct Delivery(Arc<Mutex<Option<OnOutput>>>);

impl Delivery {
    pub(super) fn new(on_output: OnOutput) -> Delivery {
        Delivery(Arc::new(Mutex::new(Some(on_output))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<OnOutput>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn call(&self, output: &BatchOutput) {
        let mut on_output = self.lock();
        if let Some(on_output) = on_output.take() {
            on_output(output);
        }
    }

    /// Whether it was not called. It never is after that.
    pub(super) fn take_back(&self) -> bool {
        self.lock().take().is_some()
    }
}

/// Result of a batch, by sequence.
pub struct BatchOutcome {
    /// The rows. Rows of `rejected` and `unresolved` sequences are NaN.
    pub output: BatchOutput,
    /// Sequences that can't be computed, by index.
    pub rejected: Vec<(usize, SequenceError)>,
    /// Sequences that need a second placement: [`Model::resolve`](crate::Model::resolve).
    pub unresolved: Vec<UnresolvedSequence>,
    /// Whether the output was passed to an [`OnOutput`]. It is if no sequence failed on the first placement.
    pub delivered: bool,
}

/// A sequence on which a placement failed, although it passes the control batch.
pub struct UnresolvedSequence {
    /// Index in the batch.
    pub index: usize,
    pub(super) batch: Arc<Batch>,
    pub(super) origin: Origin,
    pub(super) failure: SequenceFailure,
}

/// The placement that failed. It holds no weights: a sequence may wait for long.
pub(super) struct Origin {
    pub(super) placement: Placement,
    pub(super) band: Band,
    pub(super) class: String,
}

/// How a placement failed on a sequence.
pub(super) enum SequenceFailure {
    /// Rows with an unusual norm.
    Norm(Rows, String),
    /// An error, or rows that are not finite.
    Failed(IncidentKind, String),
}

impl SequenceFailure {
    pub(super) fn why(&self) -> &str {
        match self {
            SequenceFailure::Norm(_, why) | SequenceFailure::Failed(_, why) => why,
        }
    }
}

/// A placement was quarantined during a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Incident {
    /// The placement.
    pub placement: Placement,
    /// Kind of failure.
    pub kind: IncidentKind,
    /// Reason.
    pub why: String,
}

/// Kind of failure of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IncidentKind {
    /// The guard rejected the rows.
    Guard,
    /// The engine returned an error.
    Failed,
    /// The engine panicked.
    Panicked,
    /// The batch timed out.
    Hung,
}

impl IncidentKind {
    /// Name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            IncidentKind::Guard => "guard",
            IncidentKind::Failed => "failed",
            IncidentKind::Panicked => "panicked",
            IncidentKind::Hung => "hung",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use sconce_core::device::Device;
    use sconce_core::placement::Dtype;
    use sconce_core::placement::EngineId;

    use super::*;

    #[test]
    fn an_output_is_delivered_once_and_never_after_it_was_taken_back() {
        let placement = Placement {
            engine: EngineId::Candle,
            device: Device::Cpu,
            weights: "model".to_owned(),
            dtype: Dtype::F32,
        };
        let output = BatchOutput {
            rows: Rows::default(),
            placement,
            class: String::new(),
            incidents: Vec::new(),
            splits: 0,
        };
        let calls = Arc::new(AtomicUsize::new(0));
        let delivery = || {
            let calls = Arc::clone(&calls);
            Delivery::new(Box::new(move |_| {
                calls.fetch_add(1, Ordering::SeqCst);
            }))
        };
        let late = delivery();
        assert!(late.take_back());
        late.call(&output);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        let first = delivery();
        first.clone().call(&output);
        first.call(&output);
        assert!(!first.take_back());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}
