//! Computes a batch on the active placement, and isolates the sequences that it fails on.

use std::sync::Arc;
use std::time::Duration;

use sconce_core::batch::{Batch, OutputKind, Rows};

use super::attempt::Failure;
use super::guard::Breach;
use super::loader::ActivePlacement;
use super::outcome::{
    BatchOutcome, BatchOutput, Delivery, IncidentKind, OnOutput, Origin, SequenceFailure, UnresolvedSequence,
};
use super::serving::Serving;
use crate::error::{Error, SequenceError};

/// The second placement is unloaded after this idle time.
const SECOND_IDLE: Duration = Duration::from_mins(1);

impl Origin {
    fn of(active: &ActivePlacement) -> Origin {
        Origin { placement: active.placement.clone(), band: active.band, class: active.class.clone() }
    }
}

/// Result of a batch on one placement so far.
#[derive(Default)]
struct PartialResult {
    rows: Rows,
    rejected: Vec<(usize, SequenceError)>,
    unresolved: Vec<UnresolvedSequence>,
    splits: usize,
    /// Number of finished sequences.
    done: usize,
    /// Whether the placement passed the control batch during this batch.
    passed_control: bool,
    /// For the rows of the whole batch.
    delivery: Option<Delivery>,
}

impl PartialResult {
    fn push(&mut self, rows: Rows, sequences: usize) {
        self.done += sequences;
        self.rows.width = rows.width;
        self.rows.values.extend(rows.values);
        self.rows.norms.extend(rows.norms);
    }

    /// Adds NaN rows for a sequence without output.
    fn skip(&mut self, batch: &Batch, width: usize) {
        let count = batch.rows_of(0..1).len();
        let norms = if batch.output_kind == OutputKind::Tokens { Vec::new() } else { vec![f32::NAN; count] };
        self.push(Rows { width, values: vec![f32::NAN; count * width], norms }, 1);
    }
}

impl Serving {
    /// Computes `batch` on the first placement that works. Sequences that it fails on alone are left unresolved. If no
    /// placement fails, `on_output` receives the output before this function returns.
    pub(crate) fn compute_each(
        &self,
        batch: &Arc<Batch>,
        on_output: Option<OnOutput>,
    ) -> Result<BatchOutcome, Error> {
        let mut incidents = Vec::new();
        let delivery = on_output.map(Delivery::new);
        loop {
            let active = self.active(&mut |_| {})?;
            let delivery = delivery.clone().filter(|_| incidents.is_empty());
            let mut parts = PartialResult { delivery: delivery.clone(), ..PartialResult::default() };
            if let Err(failure) = self.isolate(&active, batch, &mut parts) {
                incidents.push(self.retire(&active.placement, failure));
                continue;
            }
            let idle = {
                let mut state = self.lock();
                state.committed_band.get_or_insert(active.band);
                state.second.take_if(|(_, used)| used.elapsed() > SECOND_IDLE)
            };
            drop(idle);
            let PartialResult { rows, rejected, unresolved, splits, .. } = parts;
            let (placement, class) = (active.placement.clone(), active.class.clone());
            let output = BatchOutput { rows, placement, class, incidents, splits };
            let delivered = delivery.is_some_and(|delivery| !delivery.take_back());
            return Ok(BatchOutcome { output, rejected, unresolved, delivered });
        }
    }

    /// Computes `batch` on `active`, and isolates the sequences that it fails on: by the guard, or by bisection.
    fn isolate(
        &self,
        active: &ActivePlacement,
        batch: &Arc<Batch>,
        parts: &mut PartialResult,
    ) -> Result<(), Failure> {
        let count = batch.sequences.len();
        let failure = match self.loader().attempt_and_deliver(active, batch, parts.delivery.take().as_ref()) {
            Ok(rows) => {
                parts.push(rows, count);
                return Ok(());
            }
            Err(failure @ (Failure::Placement(..) | Failure::Device(..))) => return Err(failure),
            Err(failure) => failure,
        };
        let lone = count == 1;
        let check_control = match &failure {
            Failure::OutOfMemory(_) => lone,
            Failure::Malformed(_) => false,
            Failure::Engine(_) | Failure::Rows(..) | Failure::Placement(..) | Failure::Device(..) => true,
        };
        if check_control && !parts.passed_control {
            if !self.passes_control(active, batch.output_kind)? {
                return Err(failure);
            }
            parts.passed_control = true;
        }
        if let Failure::Rows(rows, breach) = failure {
            return isolate_rows(active, batch, &rows, breach, parts);
        }
        if !lone {
            parts.splits += 1;
            self.isolate(active, &Arc::new(batch.part(0..count / 2)), parts)?;
            return self.isolate(active, &Arc::new(batch.part(count / 2..count)), parts);
        }
        let (index, width) = (parts.done, active.guard.width_of(batch.output_kind));
        parts.skip(batch, width);
        match failure {
            Failure::OutOfMemory(_) => {
                let (tokens, placement) = (batch.tokens(), active.placement.clone());
                parts.rejected.push((index, SequenceError::DoesNotFit { tokens, placement }));
            }
            Failure::Malformed(what) => parts.rejected.push((index, SequenceError::Malformed(what))),
            Failure::Engine(why) => {
                let (batch, origin) = (Arc::clone(batch), Origin::of(active));
                let failure = SequenceFailure::Failed(IncidentKind::Failed, why);
                parts.unresolved.push(UnresolvedSequence { index, batch, origin, failure });
            }
            failure @ (Failure::Rows(..) | Failure::Placement(..) | Failure::Device(..)) => {
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Whether `active` computes the control batch.
    pub(super) fn passes_control(
        &self,
        active: &ActivePlacement,
        output_kind: OutputKind,
    ) -> Result<bool, Failure> {
        let control = Batch { output_kind, ..self.control().clone() };
        match self.loader().attempt(active, &Arc::new(control)) {
            Ok(_) => Ok(true),
            Err(failure @ Failure::Device(..)) => Err(failure),
            Err(_) => Ok(false),
        }
    }
}

/// Keeps the rows that the guard accepts, and isolates the other sequences.
fn isolate_rows(
    active: &ActivePlacement,
    batch: &Batch,
    rows: &Rows,
    breach: Breach,
    parts: &mut PartialResult,
) -> Result<(), Failure> {
    let before = parts.unresolved.len();
    for index in 0..batch.sequences.len() {
        let own = rows.part(batch.rows_of(index..index + 1));
        let lone = batch.part(index..index + 1);
        let failure = match active.guard.check(&own, batch.output_kind, 1, lone.tokens()) {
            None => {
                parts.push(own, 1);
                continue;
            }
            Some(Breach::Norm(why)) => SequenceFailure::Norm(own, why),
            Some(Breach::Values(why) | Breach::Shape(why)) => {
                SequenceFailure::Failed(IncidentKind::Guard, why)
            }
        };
        let index = parts.done;
        parts.skip(&lone, rows.width);
        parts.unresolved.push(UnresolvedSequence {
            index,
            batch: Arc::new(lone),
            origin: Origin::of(active),
            failure,
        });
    }
    if parts.unresolved.len() == before { Err(Failure::Rows(Rows::default(), breach)) } else { Ok(()) }
}
