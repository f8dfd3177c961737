//! Results of a batch, and incidents of placements.

use std::sync::Arc;

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

/// Result of a batch, by sequence.
pub struct BatchOutcome {
    /// The rows. Rows of `rejected` and `unresolved` sequences are NaN.
    pub output: BatchOutput,
    /// Sequences that can't be computed, by index.
    pub rejected: Vec<(usize, SequenceError)>,
    /// Sequences that need a second placement: [`Model::resolve`](crate::Model::resolve).
    pub unresolved: Vec<UnresolvedSequence>,
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
