//! Threads for work on text that takes longer than a connection may wait: tokenizing, and writing long answers.
//! Owners take turns, so that nobody's texts wait behind all of another's, and one thread is kept for what is short, so
//! that a line of text never waits behind a list of hundreds.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use crate::keys::Owner;
use crate::shares::Shares;

/// Bytes of a task that is short: a text of some hundred words.
const SHORT: usize = 4096;

type Task = Box<dyn FnOnce() + Send>;

/// Threads that work on text, with a bound on how much of it waits.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    most: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread that does only what is short, and for the others.
    wake: [Condvar; 2],
}

/// The owners that have something waiting, the next to have its turn first.
#[derive(Default)]
struct Turns(VecDeque<(Owner, VecDeque<Task>)>);

#[derive(Default)]
struct State {
    short: Turns,
    long: Turns,
    /// Bytes that wait or are worked on.
    bytes: Shares,
    closed: bool,
}

/// Too much text waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// The bytes of one task, given back when it is done.
struct Weight {
    owner: Owner,
    bytes: usize,
    shared: Arc<Shared>,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.shared.lock().bytes.weigh(self.owner, 0, self.bytes);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task, what is short before what is `long`, if that is done at all; none once nobody can ask any more.
    fn next(&self, long: bool) -> Option<Task> {
        let mut state = self.lock();
        loop {
            let task = state.short.next();
            let task = if long { task.or_else(|| state.long.next()) } else { task };
            if task.is_some() {
                return task;
            }
            if state.closed {
                return None;
            }
            state = self.wake[usize::from(long)].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Turns {
    /// The next task of the owner whose turn it is.
    fn next(&mut self) -> Option<Task> {
        let (owner, mut tasks) = self.0.pop_front()?;
        let task = tasks.pop_front();
        if !tasks.is_empty() {
            self.0.push_back((owner, tasks));
        }
        task
    }

    fn add(&mut self, owner: Owner, task: Task) {
        match self.0.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, tasks)) => tasks.push_back(task),
            None => self.0.push_back((owner, VecDeque::from([task]))),
        }
    }
}

impl Threads {
    /// So many threads, which let at most `most` bytes of text wait.
    pub(crate) fn start(count: usize, most: usize) -> std::io::Result<Threads> {
        let threads = Threads { shared: Arc::default(), most };
        for number in 0..count.max(1) {
            let long = number > 0 || count <= 1;
            let shared = Arc::clone(&threads.shared);
            thread::Builder::new().name(format!("sconce-text-{number}")).spawn(move || {
                while let Some(task) = shared.next(long) {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
                }
            })?;
        }
        Ok(threads)
    }

    /// Runs `task`, which holds `bytes` of text, on one of the threads. A task that nobody waits for any more when
    /// its turn comes is not run; one that panics gives none.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        owner: Owner,
        bytes: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, TooMuch> {
        let (reply, answer) = oneshot::channel();
        // What holds no text at all is a long answer that is written.
        let short = (1..=SHORT).contains(&bytes);
        {
            let mut state = self.shared.lock();
            if !state.bytes.has_room(owner, bytes, self.most) {
                return Err(TooMuch);
            }
            state.bytes.weigh(owner, bytes, 0);
            let weight = Weight { owner, bytes, shared: Arc::clone(&self.shared) };
            let task = move || {
                let _weight = weight;
                if !reply.is_closed() {
                    let _ = reply.send(task());
                }
            };
            let turns = if short { &mut state.short } else { &mut state.long };
            turns.add(owner, Box::new(task));
        }
        self.shared.wake.iter().skip(usize::from(!short)).for_each(Condvar::notify_one);
        Ok(answer.await.ok())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.iter().for_each(Condvar::notify_all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns_and_what_is_short_comes_first() {
        let mut state = State::default();
        let (one, two) = (Owner(1), Owner(2));
        let done = Arc::new(Mutex::new(Vec::new()));
        let task = |name: u64| -> Task {
            let done = Arc::clone(&done);
            Box::new(move || done.lock().expect("no panic").push(name))
        };
        for _ in 0..3 {
            state.short.add(one, task(1));
        }
        state.short.add(two, task(2));
        let shared = Shared { state: Mutex::new(state), wake: Default::default() };
        shared.lock().closed = true;
        shared.lock().long.add(one, task(3));
        while let Some(task) = shared.next(false) {
            task();
        }
        assert_eq!(*done.lock().expect("no panic"), [1, 2, 1, 1]);
        shared.next(true).expect("the long one")();
        assert_eq!(*done.lock().expect("no panic"), [1, 2, 1, 1, 3]);
    }
}
