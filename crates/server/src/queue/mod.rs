//! Texts that wait for a model: admitted by their tokens, taken in batches, and gone when nobody waits for them.

mod job;
mod next_batch;
mod rate;

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sconce::core::engine::Cost;

pub(crate) use job::{Job, Kept, Outcome};
pub(crate) use next_batch::Priority;
use next_batch::{Traffic, WINDOW, Waiting, next_batch};
pub(crate) use rate::Rate;

/// How long after an interactive request bulk batches stay short.
const LATELY: Duration = Duration::from_secs(2);
/// How often a worker that has nothing to do looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(250);

/// Texts that wait for one model.
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// How much work, in seconds of measured time, may wait in each list.
    seconds: f64,
}

struct State {
    interactive: List,
    bulk: List,
    rate: Rate,
    last: Priority,
    interactive_at: Option<Instant>,
    closed: bool,
}

#[derive(Default)]
struct List {
    entries: VecDeque<Entry>,
    tokens: usize,
}

/// One text of a job.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
    waiting: Waiting,
}

impl Entry {
    pub(crate) fn tokens(&self) -> usize {
        self.waiting.tokens
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
            last: Priority::Interactive,
            interactive_at: None,
            closed: false,
        };
        Queue { state: Mutex::new(state), wake: Condvar::new(), seconds }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for `tokens` more. What is alone always has room, however much it is.
    pub(crate) fn room(&self, priority: Priority, tokens: usize) -> Result<(), Full> {
        self.lock().room(priority, tokens, self.seconds)
    }

    /// Takes in a job, unless too much waits already.
    pub(crate) fn admit(&self, job: &Arc<Job>) -> Result<(), Full> {
        let tokens = job.tokens();
        let mut state = self.lock();
        state.room(job.priority, tokens, self.seconds)?;
        if job.priority == Priority::Interactive {
            state.interactive_at = Some(job.arrived);
        }
        let list = state.list(job.priority);
        list.tokens += tokens;
        list.entries.extend(job.texts.iter().enumerate().map(|(index, text)| {
            let waiting = Waiting { tokens: text.ids.len(), want: job.want, arrived: job.arrived };
            Entry { job: Arc::clone(job), index, waiting }
        }));
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Takes out what is left of a job that nobody waits for; how many tokens that spares.
    pub(crate) fn leave(&self, job: &Arc<Job>) -> usize {
        job.leave();
        self.lock().list(job.priority).purge()
    }

    /// The next batch, waiting for one; none once the queue is closed and empty. `cost` and `width` are those of
    /// the model that computes it.
    pub(crate) fn next(&self, cost: impl Fn() -> Cost, width: usize) -> Option<Vec<Entry>> {
        let mut state = self.lock();
        loop {
            state.interactive.purge();
            state.bulk.purge();
            let now = Instant::now();
            let lately = state.interactive_at.is_some_and(|at| now.saturating_duration_since(at) < LATELY);
            let traffic = Traffic { interactive: lately, last: state.last };
            let budget = state.rate.budget(cost(), width);
            let (interactive, bulk) = (state.interactive.waiting(), state.bulk.waiting());
            if let Some(pick) = next_batch(&interactive, &bulk, now, &budget, traffic) {
                state.last = pick.priority;
                return Some(state.list(pick.priority).take(&pick.members));
            }
            if state.closed {
                return None;
            }
            state = self.wake.wait_timeout(state, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes note of how long a batch took.
    pub(crate) fn observe(&self, tokens: usize, seconds: f64) {
        self.lock().rate.observe(tokens, seconds);
    }

    pub(crate) fn rate(&self) -> Rate {
        self.lock().rate
    }

    /// Texts and tokens that wait.
    pub(crate) fn size(&self) -> (usize, usize) {
        let state = self.lock();
        let texts = state.interactive.entries.len() + state.bulk.entries.len();
        (texts, state.interactive.tokens + state.bulk.tokens)
    }

    /// Lets its worker end once nothing waits.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_all();
    }
}

impl State {
    fn list(&mut self, priority: Priority) -> &mut List {
        match priority {
            Priority::Interactive => &mut self.interactive,
            Priority::Bulk => &mut self.bulk,
        }
    }

    fn room(&mut self, priority: Priority, tokens: usize, seconds: f64) -> Result<(), Full> {
        let rate = self.rate;
        let waits = self.list(priority).tokens;
        if waits == 0 || waits + tokens <= rate.tokens(seconds) {
            return Ok(());
        }
        Err(Full { seconds: rate.seconds((waits + tokens).saturating_sub(rate.tokens(seconds))) })
    }
}

impl List {
    /// The first of those that wait.
    fn waiting(&self) -> Vec<Waiting> {
        self.entries.iter().take(WINDOW).map(|entry| entry.waiting).collect()
    }

    /// Drops what nobody waits for; its tokens.
    fn purge(&mut self) -> usize {
        let mut spared = 0;
        self.entries.retain(|entry| {
            let gone = entry.job.is_gone();
            if gone {
                spared += entry.waiting.tokens;
            }
            !gone
        });
        self.tokens -= spared;
        spared
    }

    /// Takes out the entries at these places, which ascend.
    fn take(&mut self, members: &[usize]) -> Vec<Entry> {
        let reach = members.last().map_or(0, |last| last + 1).min(self.entries.len());
        let mut next = members.iter().copied().peekable();
        let (mut taken, mut left) = (Vec::with_capacity(members.len()), Vec::new());
        for (at, entry) in self.entries.drain(..reach).enumerate() {
            if next.next_if_eq(&at).is_some() {
                self.tokens -= entry.waiting.tokens;
                taken.push(entry);
            } else {
                left.push(entry);
            }
        }
        for entry in left.into_iter().rev() {
            self.entries.push_front(entry);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use sconce::core::batch::Want;
    use sconce::tokens::Tokenized;

    use super::*;

    fn job(lengths: &[usize], priority: Priority) -> Arc<Job> {
        let text = |&length: &usize| Tokenized {
            ids: vec![1; length],
            types: vec![0; length],
            whole: length,
            ..Tokenized::default()
        };
        Arc::new(Job::new(lengths.iter().map(text).collect(), Want::Pooled, priority, false).0)
    }

    fn queue() -> Queue {
        Queue::new(Rate { least: 0.001, tokens_per_second: 1000.0 }, 2.0)
    }

    #[test]
    fn room_is_counted_in_tokens_and_what_is_alone_has_always_room() {
        let queue = queue();
        queue.admit(&job(&[5000], Priority::Bulk)).expect("alone");
        let full = queue.admit(&job(&[10], Priority::Bulk)).expect_err("no room");
        assert!((full.seconds - 3.01).abs() < 0.01, "{full:?}");
        queue.admit(&job(&[10], Priority::Interactive)).expect("another list");
        assert_eq!(queue.size(), (2, 5010));
    }

    #[test]
    fn what_nobody_waits_for_is_never_taken() {
        let queue = queue();
        let (gone, stays) = (job(&[10, 20, 30], Priority::Interactive), job(&[7], Priority::Interactive));
        queue.admit(&gone).expect("room");
        queue.admit(&stays).expect("room");
        assert_eq!(queue.leave(&gone), 60);
        assert_eq!(queue.size(), (1, 7));
        let batch = queue.next(|| Cost::Packed, 1).expect("something waits");
        assert_eq!(batch.len(), 1);
        assert!(Arc::ptr_eq(&batch[0].job, &stays));
        queue.close();
        assert!(queue.next(|| Cost::Packed, 1).is_none());
    }

    #[test]
    fn a_batch_leaves_the_others_in_their_order() {
        let queue = queue();
        let all = job(&[30, 30, 10], Priority::Interactive);
        queue.admit(&all).expect("room");
        let taken = |batch: Vec<Entry>| batch.iter().map(|entry| entry.index).collect::<Vec<_>>();
        // Fifty milliseconds are fifty tokens.
        assert_eq!(taken(queue.next(|| Cost::Packed, 1).expect("a batch")), [0, 2]);
        assert_eq!(taken(queue.next(|| Cost::Packed, 1).expect("a batch")), [1]);
        assert_eq!(queue.size(), (0, 0));
    }
}
