//! The queue of a model: admission by tokens, dequeuing in batches, cancellation.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sconce::core::engine::BatchLayout;

use sconce_http::keys::TenantId;

use crate::schedule::in_flight::InFlight;
use crate::schedule::job::Job;
use crate::schedule::list::{Entry, List};
use crate::schedule::next_batch::{Priority, Traffic, next_batch};
use crate::schedule::rate::Rate;

/// Time after an interactive request during which bulk batches stay short.
const INTERACTIVE_WINDOW: Duration = Duration::from_secs(2);
/// Interval at which an idle worker checks whether the queue was closed or its role has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The queue of one model.
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// Wakes the spare worker, which takes interactive texts only.
    wake_spare: Condvar,
}

struct State {
    interactive: List,
    bulk: List,
    rate: Rate,
    /// Capacity of each list in seconds of work at the measured rate.
    max_seconds: f64,
    /// Priority of the last batch.
    last: Priority,
    /// Arrival of the last interactive request.
    interactive_at: Option<Instant>,
    in_flight: InFlight,
    /// Number of batches in flight that are bulk.
    bulk_in_flight: usize,
    /// Tokens of batches in flight.
    tokens_in_flight: usize,
    closed: bool,
}

/// A batch in flight. Dropping it ends the batch.
pub(crate) struct ActiveBatch<'a> {
    pub(crate) entries: Vec<Entry>,
    pub(crate) began: Instant,
    tokens: usize,
    priority: Priority,
    /// Whether the spare worker took it.
    spare: bool,
    concurrency: usize,
    /// Worker seconds that all batches had used when it was taken.
    worker_seconds: f64,
    queue: &'a Queue,
}

impl ActiveBatch<'_> {
    /// Updates the measured rate once its tokens are computed. Batches that ran concurrently are accounted for, because the
    /// rate is that of the model and not of one worker.
    pub(crate) fn observe(&self, tokens: usize, done: Instant) {
        if self.spare {
            return;
        }
        let mut state = self.queue.lock();
        let seconds = done.saturating_duration_since(self.began).as_secs_f64();
        let overlap = (state.in_flight.update(done, 0) - self.worker_seconds) / seconds.max(1e-9);
        state.rate.observe(tokens, seconds / overlap.max(1.0), self.concurrency);
    }
}

impl Drop for ActiveBatch<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.tokens_in_flight -= self.tokens;
        if !self.spare {
            state.in_flight.update(Instant::now(), -1);
            state.bulk_in_flight -= usize::from(self.priority == Priority::Bulk);
        }
    }
}

/// The queue is full; `seconds` is the time until it admits the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QueueFull {
    pub(crate) seconds: f64,
}

impl Queue {
    pub(crate) fn new(rate: Rate, seconds: f64) -> Queue {
        let state = State {
            interactive: List::default(),
            bulk: List::default(),
            rate,
            max_seconds: seconds,
            last: Priority::Interactive,
            interactive_at: None,
            in_flight: InFlight::new(),
            bulk_in_flight: 0,
            tokens_in_flight: 0,
            closed: false,
        };
        Queue { state: Mutex::new(state), wake: Condvar::new(), wake_spare: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the queue admits `tokens` more. An empty queue admits any job.
    pub(crate) fn capacity(
        &self,
        priority: Priority,
        tenant: TenantId,
        tokens: usize,
    ) -> Result<(), QueueFull> {
        self.lock().capacity(priority, tenant, tokens)
    }

    /// Enqueues a job, unless the queue is full.
    pub(crate) fn admit(&self, job: &Arc<Job>) -> Result<(), QueueFull> {
        let tokens = job.tokens();
        let mut state = self.lock();
        if state.closed {
            return Err(QueueFull { seconds: 1.0 });
        }
        state.capacity(job.priority, job.tenant, tokens)?;
        if job.priority == Priority::Interactive {
            state.interactive_at = Some(job.arrived);
        }
        match state.window(tokens) {
            None => state.list(job.priority).admit(job),
            Some(window) => state.list(job.priority).admit_oversized(job, window),
        }
        drop(state);
        self.wake.notify_one();
        self.wake_spare.notify_one();
        Ok(())
    }

    /// Cancels a job, removes its waiting texts, and returns the tokens that are not computed.
    pub(crate) fn cancel(&self, job: &Arc<Job>) -> usize {
        job.cancel();
        self.lock().list(job.priority).purge()
    }

    /// Blocks until a batch is due; `None` once the queue is closed and empty. `model` gives the cost model and the
    /// concurrency limit of the active placement. Above a limit of 1 the worker with the index `concurrency` is the spare:
    /// it takes interactive texts while all other workers are busy and at least one of them with bulk. Workers above the
    /// limit sleep.
    pub(crate) fn next(
        &self,
        worker: usize,
        model: impl Fn() -> (BatchLayout, usize),
        width: usize,
    ) -> Option<ActiveBatch<'_>> {
        let role = || match model().1 {
            concurrency if worker < concurrency => Some(false),
            concurrency if concurrency > 1 && worker == concurrency => Some(true),
            _ => None,
        };
        let spare = loop {
            match role() {
                Some(spare) => break spare,
                None if self.lock().closed => return None,
                None => thread::sleep(POLL_INTERVAL),
            }
        };
        let mut state = self.lock();
        loop {
            if spare && (state.bulk_in_flight == 0 || state.in_flight.batches() < model().1) {
                if state.closed {
                    return None;
                }
                state = self
                    .wake_spare
                    .wait_timeout(state, POLL_INTERVAL)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
                continue;
            }
            state.interactive.purge();
            state.bulk.purge();
            let now = Instant::now();
            let is_recent = |at| now.saturating_duration_since(at) < INTERACTIVE_WINDOW;
            let traffic =
                Traffic { interactive: state.interactive_at.is_some_and(is_recent), last: state.last };
            let (cost, concurrency) = model();
            let mut budget = state.rate.budget(cost, width, concurrency, state.interactive.tokens());
            let (interactive, mut bulk) = (state.interactive.waiting(), state.bulk.waiting());
            if spare {
                budget.interactive = budget.shared;
                bulk.clear();
            }
            if let Some(selection) = next_batch(&interactive, &bulk, now, &budget, traffic) {
                let priority = selection.priority;
                let entries = state.list(priority).take(&selection.members);
                let tokens = entries.iter().map(Entry::tokens).sum();
                state.tokens_in_flight += tokens;
                let worker_seconds = state.in_flight.update(now, isize::from(!spare));
                if !spare {
                    state.last = priority;
                    state.bulk_in_flight += usize::from(priority == Priority::Bulk);
                }
                if state.interactive.len() + state.bulk.len() > 0 {
                    self.wake.notify_one();
                    self.wake_spare.notify_one();
                }
                return Some(ActiveBatch {
                    entries,
                    began: now,
                    tokens,
                    priority,
                    spare,
                    concurrency,
                    worker_seconds,
                    queue: self,
                });
            }
            if state.closed {
                return None;
            }
            let wake = if spare { &self.wake_spare } else { &self.wake };
            state = wake.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Changes the capacity, in seconds of work.
    pub(crate) fn set_limit(&self, seconds: f64) {
        self.lock().max_seconds = seconds;
    }

    pub(crate) fn rate(&self) -> Rate {
        self.lock().rate
    }

    /// Waiting texts and tokens, the backlog included.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.lock();
        let lists = [&state.interactive, &state.bulk];
        lists.iter().fold((0, 0), |(texts, tokens), list| {
            let backlog = list.backlog();
            (texts + list.len() + backlog.0, tokens + list.tokens() + backlog.1)
        })
    }

    /// Tokens that wait or are in flight.
    pub(crate) fn unfinished_tokens(&self) -> usize {
        self.size().1 + self.lock().tokens_in_flight
    }

    /// Closes the queue: workers end once it is empty.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
        self.wake_spare.notify_all();
    }
}

impl State {
    fn list(&mut self, priority: Priority) -> &mut List {
        match priority {
            Priority::Interactive => &mut self.interactive,
            Priority::Bulk => &mut self.bulk,
        }
    }

    /// The window of an oversized job, which would fill more than half of its list.
    fn window(&self, tokens: usize) -> Option<usize> {
        let limit = self.rate.tokens(self.max_seconds);
        (tokens > limit / 2).then_some(limit / 4)
    }

    /// Whether the list admits `tokens` more of a tenant. A tenant below its fair share is admitted even if the list is
    /// full.
    fn capacity(&mut self, priority: Priority, tenant: TenantId, tokens: usize) -> Result<(), QueueFull> {
        let (rate, window, limit) = (self.rate, self.window(tokens), self.rate.tokens(self.max_seconds));
        let list = self.list(priority);
        let (waiting, (own, tenants)) = (list.tokens(), list.share(tenant));
        let counted = window.unwrap_or(tokens);
        let fair = tenants > 1 && (own == 0 || own + counted <= limit / tenants);
        if waiting > 0 && waiting + counted > limit && !fair {
            return Err(QueueFull { seconds: rate.seconds(waiting + counted - limit) });
        }
        let rest = tokens - counted;
        if rest > 0 && !list.backlog_admits(tenant, rest, limit) {
            return Err(QueueFull { seconds: rate.seconds((list.backlog().1 + rest).saturating_sub(limit)) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
