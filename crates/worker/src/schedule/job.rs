//! A job: the tokenized texts of one request, and the channel that returns its outcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sconce::core::batch::OutputKind;
use sconce::operations::SequenceOutput;
use sconce::tokenize::TokenSequence;
use sconce::{BatchOutput, Incident, Placement};
use tokio::sync::oneshot;

use crate::schedule::next_batch::Priority;
use sconce_http::keys::TenantId;
use sconce_http::memory_budget::Reservation;
use sconce_http::refusal::Refusal;

/// The output of a text that is not computed yet.
pub(crate) const PENDING: SequenceOutput = SequenceOutput::Sparse(Vec::new());

/// The tokenized texts of one request.
pub(crate) struct Job {
    pub(crate) texts: Vec<TokenSequence>,
    pub(crate) output_kind: OutputKind,
    pub(crate) priority: Priority,
    /// Whether rows are collected as sparse vectors: the nonzero weights only.
    pub(crate) sparse: bool,
    pub(crate) arrived: Instant,
    pub(crate) tenant: TenantId,
    cancelled: AtomicBool,
    progress: Mutex<Progress>,
}

struct Progress {
    outcome: Outcome,
    /// Number of texts that are not computed yet.
    remaining: usize,
    /// The memory of its rows.
    reservation: Reservation,
    reply: Option<oneshot::Sender<Result<Outcome, Refusal>>>,
}

/// Timestamps of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTiming {
    /// Dequeued.
    pub(crate) began: Instant,
    /// The forward pass began.
    pub(crate) computing: Instant,
    /// The forward pass ended.
    pub(crate) computed: Instant,
    /// The job received its rows.
    pub(crate) ended: Instant,
    /// Texts in the batch, of all jobs.
    pub(crate) texts: usize,
    /// Tokens in the batch, of all jobs.
    pub(crate) tokens: usize,
}

/// The result of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The output of each text.
    pub(crate) outputs: Vec<SequenceOutput>,
    /// The placements that computed it.
    pub(crate) placements: Vec<Placement>,
    /// Their numerics classes.
    pub(crate) classes: Vec<String>,
    /// Failures of placements while they computed it.
    pub(crate) incidents: Vec<Incident>,
    /// Queue time until its first text was dequeued.
    pub(crate) queued: Duration,
    /// Time during which at least one of its batches ran.
    pub(crate) computing: Duration,
    pub(crate) batches: Vec<BatchTiming>,
}

impl Job {
    /// A job and the receiver of its outcome.
    pub(crate) fn new(
        texts: Vec<TokenSequence>,
        output_kind: OutputKind,
        priority: Priority,
        sparse: bool,
        tenant: TenantId,
    ) -> (Job, oneshot::Receiver<Result<Outcome, Refusal>>) {
        let (reply, outcome) = oneshot::channel();
        let outcome_so_far = Outcome { outputs: vec![PENDING; texts.len()], ..Outcome::default() };
        let progress = Mutex::new(Progress {
            outcome: outcome_so_far,
            remaining: texts.len(),
            reservation: Reservation::default(),
            reply: Some(reply),
        });
        let (arrived, cancelled) = (Instant::now(), AtomicBool::new(false));
        (Job { texts, output_kind, priority, sparse, arrived, tenant, cancelled, progress }, outcome)
    }

    /// Holds the memory reserved for its rows until the job is dropped.
    pub(crate) fn with_reservation(mut self, reservation: Reservation) -> Job {
        self.progress.get_mut().unwrap_or_else(PoisonError::into_inner).reservation = reservation;
        self
    }

    pub(crate) fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.ids.len()).sum()
    }

    /// Marks the job as cancelled: its client is gone, or it failed.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Adds the rows of some of its texts from a computed batch. The last text completes the job.
    pub(crate) fn add_rows<'a>(
        &self,
        computed: &BatchOutput,
        rows: impl Iterator<Item = (usize, &'a [f32], Option<f32>)>,
        batch: BatchTiming,
    ) {
        let mut locked = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = &mut *locked;
        let outcome = &mut progress.outcome;
        if outcome.placements.is_empty() {
            outcome.queued = batch.began.saturating_duration_since(self.arrived);
        }
        outcome.batches.push(BatchTiming { ended: Instant::now(), ..batch });
        if !outcome.placements.contains(&computed.placement) {
            outcome.placements.push(computed.placement.clone());
        }
        if !outcome.classes.contains(&computed.class) {
            outcome.classes.push(computed.class.clone());
        }
        outcome.incidents.extend(computed.incidents.iter().cloned());
        let mut done = 0;
        for (index, values, norm) in rows {
            let output = SequenceOutput::new(values, norm, self.sparse);
            // The memory of dense rows is reserved beforehand; the weights of a sparse row are known now.
            if self.sparse
                && let Err(refusal) = progress.reservation.grow(output.bytes())
            {
                drop(locked);
                return self.fail(refusal);
            }
            outcome.outputs[index] = output;
            done += 1;
        }
        progress.remaining -= done;
        if progress.remaining == 0 {
            let mut outcome = std::mem::take(&mut progress.outcome);
            outcome.computing = union_duration(&outcome.batches);
            if let Some(reply) = progress.reply.take() {
                let _ = reply.send(Ok(outcome));
            }
        }
    }

    /// Answers the job with a refusal and cancels what is left of it.
    pub(crate) fn fail(&self, refusal: Refusal) {
        self.cancel();
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reply) = progress.reply.take() {
            let _ = reply.send(Err(refusal));
        }
    }
}

/// The time during which at least one batch ran.
fn union_duration(batches: &[BatchTiming]) -> Duration {
    let mut timings: Vec<(Instant, Instant)> = batches.iter().map(|one| (one.began, one.ended)).collect();
    timings.sort_unstable();
    let Some(&(first, _)) = timings.first() else { return Duration::ZERO };
    let (mut total, mut until) = (Duration::ZERO, first);
    for (began, ended) in timings {
        total += ended.saturating_duration_since(began.max(until));
        until = until.max(ended);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_batches_count_their_time_once() {
        let start = Instant::now();
        let one = |began, ended| {
            let [began, ended] =
                [began, ended].map(|milliseconds| start + Duration::from_millis(milliseconds));
            BatchTiming { began, computing: began, computed: ended, ended, texts: 1, tokens: 1 }
        };
        assert_eq!(union_duration(&[]), Duration::ZERO);
        let all = [one(0, 10), one(30, 50), one(5, 20), one(35, 40)];
        assert_eq!(union_duration(&all), Duration::from_millis(40));
    }
}
