//! What one request asks to have computed, and the way its rows take back to it.

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

/// What one request asks to have computed.
pub(crate) struct Job {
    pub(crate) texts: Vec<TokenSequence>,
    pub(crate) output_kind: OutputKind,
    pub(crate) priority: Priority,
    /// Whether rows are collected as the few words that weigh something.
    pub(crate) sparse: bool,
    pub(crate) arrived: Instant,
    /// Whose it is.
    pub(crate) tenant: TenantId,
    gone: AtomicBool,
    progress: Mutex<Progress>,
}

struct Progress {
    answer: Outcome,
    left: usize,
    /// The memory of its rows.
    reservation: Reservation,
    reply: Option<oneshot::Sender<Result<Outcome, Refusal>>>,
}

/// One batch, by the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchTiming {
    /// Its texts were taken from the queue.
    pub(crate) began: Instant,
    /// The model began to compute.
    pub(crate) computing: Instant,
    /// And was done.
    pub(crate) computed: Instant,
    /// A job had its rows.
    pub(crate) ended: Instant,
    /// Texts and tokens of all jobs in it.
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
}

/// What became of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The output of each text.
    pub(crate) outputs: Vec<SequenceOutput>,
    /// The placements that did the work.
    pub(crate) placements: Vec<Placement>,
    /// Their numerics classes.
    pub(crate) classes: Vec<String>,
    /// The placements that failed over it.
    pub(crate) incidents: Vec<Incident>,
    /// Until its first text was begun.
    pub(crate) queued: Duration,
    /// In batches.
    pub(crate) computing: Duration,
    /// The batches that it was in.
    pub(crate) batches: Vec<BatchTiming>,
}

impl Job {
    /// A job, and where its outcome will come out.
    pub(crate) fn new(
        texts: Vec<TokenSequence>,
        output_kind: OutputKind,
        priority: Priority,
        sparse: bool,
        tenant: TenantId,
    ) -> (Job, oneshot::Receiver<Result<Outcome, Refusal>>) {
        let (reply, outcome) = oneshot::channel();
        let answer = Outcome { outputs: vec![PENDING; texts.len()], ..Outcome::default() };
        let progress = Mutex::new(Progress {
            answer,
            left: texts.len(),
            reservation: Reservation::default(),
            reply: Some(reply),
        });
        let (arrived, gone) = (Instant::now(), AtomicBool::new(false));
        (Job { texts, output_kind, priority, sparse, arrived, tenant, gone, progress }, outcome)
    }

    /// The same, with memory reserved for its rows until it is dropped.
    pub(crate) fn holding(mut self, reservation: Reservation) -> Job {
        self.progress.get_mut().unwrap_or_else(PoisonError::into_inner).reservation = reservation;
        self
    }

    pub(crate) fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.ids.len()).sum()
    }

    /// Nobody waits for it any more.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Takes the rows of some of its texts out of a computed batch.
    pub(crate) fn take<'a>(
        &self,
        computed: &BatchOutput,
        rows: impl Iterator<Item = (usize, &'a [f32], Option<f32>)>,
        batch: BatchTiming,
    ) {
        let mut locked = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = &mut *locked;
        let answer = &mut progress.answer;
        if answer.placements.is_empty() {
            answer.queued = batch.began.saturating_duration_since(self.arrived);
        }
        answer.batches.push(BatchTiming { ended: Instant::now(), ..batch });
        if !answer.placements.contains(&computed.placement) {
            answer.placements.push(computed.placement.clone());
        }
        if !answer.classes.contains(&computed.class) {
            answer.classes.push(computed.class.clone());
        }
        answer.incidents.extend(computed.incidents.iter().cloned());
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
            answer.outputs[index] = output;
            done += 1;
        }
        progress.left -= done;
        if progress.left == 0 {
            let mut answer = std::mem::take(&mut progress.answer);
            answer.computing = covered(&answer.batches);
            if let Some(reply) = progress.reply.take() {
                let _ = reply.send(Ok(answer));
            }
        }
    }

    /// It can't be computed.
    pub(crate) fn fail(&self, refusal: Refusal) {
        self.leave();
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reply) = progress.reply.take() {
            let _ = reply.send(Err(refusal));
        }
    }
}

/// How long at least one of these went on.
fn covered(batches: &[BatchTiming]) -> Duration {
    let mut timings: Vec<(Instant, Instant)> = batches.iter().map(|one| (one.began, one.ended)).collect();
    timings.sort_unstable();
    let Some(&(first, _)) = timings.first() else { return Duration::ZERO };
    let (mut all, mut until) = (Duration::ZERO, first);
    for (began, ended) in timings {
        all += ended.saturating_duration_since(began.max(until));
        until = until.max(ended);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_side_by_side_take_their_time_once() {
        let start = Instant::now();
        let one = |began, ended| {
            let [began, ended] =
                [began, ended].map(|milliseconds| start + Duration::from_millis(milliseconds));
            BatchTiming { began, computing: began, computed: ended, ended, texts: 1, tokens: 1 }
        };
        assert_eq!(covered(&[]), Duration::ZERO);
        let all = [one(0, 10), one(30, 50), one(5, 20), one(35, 40)];
        assert_eq!(covered(&all), Duration::from_millis(40));
    }
}
