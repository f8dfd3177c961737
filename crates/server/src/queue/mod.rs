//! Texts that wait for a model: admitted by their tokens, taken in batches, and gone when nobody waits for them.

mod job;
mod list;
mod next_batch;
mod rate;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sconce::core::engine::Cost;

use crate::keys::Owner;
pub(crate) use job::{Job, Kept, Outcome, Stretch};
use list::List;
pub(crate) use next_batch::Priority;
use next_batch::{Traffic, Waiting, next_batch};
pub(crate) use rate::Rate;

/// How long after an interactive request bulk batches stay short.
const LATELY: Duration = Duration::from_secs(2);
/// How often a worker that has nothing to do looks whether it is still wanted.
const GLANCE: Duration = Duration::from_millis(250);

/// Texts that wait for one model.
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    interactive: List,
    bulk: List,
    rate: Rate,
    /// How much work, in seconds of measured time, may wait in each list.
    seconds: f64,
    last: Priority,
    interactive_at: Option<Instant>,
    closed: bool,
}

/// One text of a job.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) job: Arc<Job>,
    pub(crate) index: usize,
    waiting: Waiting,
    /// When it would be done if every owner had an equal share, in tokens.
    tag: u64,
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
            seconds,
            last: Priority::Interactive,
            interactive_at: None,
            closed: false,
        };
        Queue { state: Mutex::new(state), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for `tokens` more. What is alone always has room, however much it is.
    pub(crate) fn room(&self, priority: Priority, owner: Owner, tokens: usize) -> Result<(), Full> {
        self.lock().room(priority, owner, tokens)
    }

    /// Takes in a job, unless too much waits already.
    pub(crate) fn admit(&self, job: &Arc<Job>) -> Result<(), Full> {
        let tokens = job.tokens();
        let mut state = self.lock();
        if state.closed {
            return Err(Full { seconds: 1.0 });
        }
        state.room(job.priority, job.owner, tokens)?;
        if job.priority == Priority::Interactive {
            state.interactive_at = Some(job.arrived);
        }
        state.list(job.priority).admit(job);
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

    /// Lets so many seconds of work wait from now on.
    pub(crate) fn limit(&self, seconds: f64) {
        self.lock().seconds = seconds;
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
        let texts = state.interactive.len() + state.bulk.len();
        (texts, state.interactive.tokens() + state.bulk.tokens())
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

    /// Who has less than a fair share waiting has room, however much the others have.
    fn room(&mut self, priority: Priority, owner: Owner, tokens: usize) -> Result<(), Full> {
        let (rate, seconds) = (self.rate, self.seconds);
        let list = self.list(priority);
        let (waits, most) = (list.tokens(), rate.tokens(seconds));
        let (own, owners) = list.share(owner);
        let fair = owners > 1 && (own == 0 || own + tokens <= most / owners);
        if waits == 0 || waits + tokens <= most || fair {
            return Ok(());
        }
        Err(Full { seconds: rate.seconds((waits + tokens).saturating_sub(most)) })
    }
}

#[cfg(test)]
mod tests {
    use sconce::core::batch::Want;
    use sconce::tokens::Tokenized;

    use super::*;

    fn job(lengths: &[usize], priority: Priority) -> Arc<Job> {
        of(1, lengths, priority)
    }

    fn of(owner: u64, lengths: &[usize], priority: Priority) -> Arc<Job> {
        let text = |&length: &usize| Tokenized {
            ids: vec![1; length],
            types: vec![0; length],
            whole: length,
            ..Tokenized::default()
        };
        let texts = lengths.iter().map(text).collect();
        Arc::new(Job::new(texts, Want::Pooled, priority, false, Owner(owner)).0)
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

    #[test]
    fn an_owner_who_floods_leaves_the_others_their_share() {
        let queue = queue();
        let interactive = Priority::Interactive;
        while queue.admit(&of(1, &[40; 5], interactive)).is_ok() {}
        assert_eq!(queue.size().1, 2000, "two seconds of work");
        let other = of(2, &[10], interactive);
        queue.admit(&other).expect("the other has its share");
        queue.admit(&of(1, &[10], interactive)).expect_err("the first has had more than its share");
        let batch = queue.next(|| Cost::Packed, 1).expect("a batch");
        assert!(Arc::ptr_eq(&batch[0].job, &other), "who has had nothing goes first");
        // From here on both have something waiting, and take turns.
        queue.admit(&of(2, &[20; 40], interactive)).expect("within its share");
        for _ in 0..10 {
            let batch = queue.next(|| Cost::Packed, 1).expect("a batch");
            let tokens = |owner| {
                let own = batch.iter().filter(|entry| entry.job.owner == Owner(owner));
                own.map(Entry::tokens).sum::<usize>()
            };
            assert_eq!(tokens(1) + tokens(2), 40, "what fits into fifty");
        }
        let (own, owners) = queue.lock().interactive.share(Owner(2));
        assert!(
            (160..=240).contains(&(800 - own)),
            "half of ten batches of forty tokens, and not {}",
            800 - own
        );
        assert_eq!(owners, 2);
    }
}
