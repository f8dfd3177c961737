//! Texts that wait for a model: admitted by their tokens, taken in batches, and gone when nobody waits for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sconce::core::engine::Cost;

use sconce_http::keys::TenantId;

use crate::schedule::busy::Busy;
use crate::schedule::job::Job;
use crate::schedule::list::{Entry, List};
use crate::schedule::next_batch::{Priority, Traffic, next_batch};
use crate::schedule::rate::Rate;

/// How long after an interactive request bulk batches stay short.
const LATELY: Duration = Duration::from_secs(2);
/// How often a worker that has nothing to do looks whether it is still wanted.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Texts that wait for one model.
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// For the hand that is kept for interactive texts.
    wake_spare: Condvar,
}

struct State {
    interactive: List,
    bulk: List,
    rate: Rate,
    /// How much work, in seconds of measured time, may wait in each list.
    seconds: f64,
    last: Priority,
    interactive_at: Option<Instant>,
    busy: Busy,
    /// How many of those at work are bulk.
    bulk_at_work: usize,
    closed: bool,
}

/// A batch that was taken, until it is dropped.
pub(crate) struct Taken<'a> {
    pub(crate) entries: Vec<Entry>,
    pub(crate) began: Instant,
    priority: Priority,
    spare: bool,
    concurrency: usize,
    /// What all hands had spent by then.
    spent: f64,
    queue: &'a Queue,
}

impl Taken<'_> {
    /// Takes note of when its tokens were computed: the others that were at work meanwhile count as well, or the model
    /// would seem as slow as one of its hands.
    pub(crate) fn observe(&self, tokens: usize, done: Instant) {
        if self.spare {
            return;
        }
        let mut state = self.queue.lock();
        let seconds = done.saturating_duration_since(self.began).as_secs_f64();
        let at_once = (state.busy.change(done, 0) - self.spent) / seconds.max(1e-9);
        state.rate.observe(tokens, seconds / at_once.max(1.0), self.concurrency);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.spare {
            let mut state = self.queue.lock();
            state.busy.change(Instant::now(), -1);
            state.bulk_at_work -= usize::from(self.priority == Priority::Bulk);
        }
    }
}

/// There is no room; how long it takes until there is some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Full {
    pub(crate) seconds: f64,
}

impl Queue {
    pub(crate) fn new(rate: Rate, seconds: f64) -> Queue {
        let state = State {
            interactive: List::default(),
            bulk: List::default(),
            rate,
            seconds,
            last: Priority::Interactive,
            interactive_at: None,
            busy: Busy::new(),
            bulk_at_work: 0,
            closed: false,
        };
        Queue { state: Mutex::new(state), wake: Condvar::new(), wake_spare: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for `tokens` more. What is alone always has room, however much it is.
    pub(crate) fn capacity(&self, priority: Priority, tenant: TenantId, tokens: usize) -> Result<(), Full> {
        self.lock().capacity(priority, tenant, tokens)
    }

    /// Takes in a job, unless too much waits already.
    pub(crate) fn admit(&self, job: &Arc<Job>) -> Result<(), Full> {
        let tokens = job.tokens();
        let mut state = self.lock();
        if state.closed {
            return Err(Full { seconds: 1.0 });
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

    /// Takes out what is left of a job that nobody waits for; how many tokens that spares.
    pub(crate) fn leave(&self, job: &Arc<Job>) -> usize {
        job.leave();
        self.lock().list(job.priority).purge()
    }

    /// The next batch, waiting for one; none once the queue is closed and empty. The model that computes it tells the
    /// cost and how many hands it has. Where it has several, the one after the last is a spare one: it takes
    /// interactive texts while all others are busy, some of them with bulk. Whoever is none of these waits.
    pub(crate) fn next(
        &self,
        hand: usize,
        model: impl Fn() -> (Cost, usize),
        width: usize,
    ) -> Option<Taken<'_>> {
        let role = || match model().1 {
            concurrency if hand < concurrency => Some(false),
            concurrency if concurrency > 1 && hand == concurrency => Some(true),
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
            if spare && (state.bulk_at_work == 0 || state.busy.batches() < model().1) {
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
            let lately = state.interactive_at.is_some_and(|at| now.saturating_duration_since(at) < LATELY);
            let traffic = Traffic { interactive: lately, last: state.last };
            let (cost, concurrency) = model();
            let mut budget = state.rate.budget(cost, width, concurrency, state.interactive.tokens());
            let (interactive, mut bulk) = (state.interactive.waiting(), state.bulk.waiting());
            if spare {
                budget.interactive = budget.shared;
                bulk.clear();
            }
            if let Some(pick) = next_batch(&interactive, &bulk, now, &budget, traffic) {
                let (priority, entries) = (pick.priority, state.list(pick.priority).take(&pick.members));
                let spent = state.busy.change(now, isize::from(!spare));
                if !spare {
                    state.last = priority;
                    state.bulk_at_work += usize::from(priority == Priority::Bulk);
                }
                if state.interactive.len() + state.bulk.len() > 0 {
                    self.wake.notify_one();
                    self.wake_spare.notify_one();
                }
                return Some(Taken { entries, began: now, priority, spare, concurrency, spent, queue: self });
            }
            if state.closed {
                return None;
            }
            let wake = if spare { &self.wake_spare } else { &self.wake };
            state = wake.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets so many seconds of work wait from now on.
    pub(crate) fn limit(&self, seconds: f64) {
        self.lock().seconds = seconds;
    }

    pub(crate) fn rate(&self) -> Rate {
        self.lock().rate
    }

    /// Texts and tokens that wait.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.lock();
        let lists = [&state.interactive, &state.bulk];
        lists.iter().fold((0, 0), |(texts, tokens), list| {
            let backlog = list.backlog();
            (texts + list.len() + backlog.0, tokens + list.tokens() + backlog.1)
        })
    }

    /// Lets its worker end once nothing waits.
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

    /// The tokens that a job of so many `tokens` has in its list at a time, where it would fill more than half of it.
    fn window(&self, tokens: usize) -> Option<usize> {
        let most = self.rate.tokens(self.seconds);
        (tokens > most / 2).then_some(most / 4)
    }

    /// Who has less than a fair share waiting has room, however much the others have.
    fn capacity(&mut self, priority: Priority, tenant: TenantId, tokens: usize) -> Result<(), Full> {
        let (rate, window, most) = (self.rate, self.window(tokens), self.rate.tokens(self.seconds));
        let list = self.list(priority);
        let (waits, (own, tenants)) = (list.tokens(), list.share(tenant));
        let counted = window.unwrap_or(tokens);
        let fair = tenants > 1 && (own == 0 || own + counted <= most / tenants);
        if waits > 0 && waits + counted > most && !fair {
            return Err(Full { seconds: rate.seconds(waits + counted - most) });
        }
        let rest = tokens - counted;
        if rest > 0 && !list.backlog_has_room(tenant, rest, most) {
            return Err(Full { seconds: rate.seconds((list.backlog().1 + rest).saturating_sub(most)) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
