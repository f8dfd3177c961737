//! Threads for work on text that takes longer than a connection may wait: tokenizing, and writing long answers.
//! Owners take turns, so that nobody's texts wait behind all of another's.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use crate::keys::Owner;

type Task = Box<dyn FnOnce() + Send>;

/// Threads that work on text, with a bound on how much of it waits.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    most: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// The owners that have something waiting, the next to have its turn first.
    turns: VecDeque<(Owner, VecDeque<Task>)>,
    /// Bytes that wait or are worked on, for each owner.
    bytes: Vec<(Owner, usize)>,
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
        self.shared.lock().weigh(self.owner, 0, self.bytes);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task, of the owner whose turn it is; none once nobody can ask any more.
    fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some((owner, mut tasks)) = state.turns.pop_front() {
                let task = tasks.pop_front();
                if !tasks.is_empty() {
                    state.turns.push_back((owner, tasks));
                }
                return task;
            }
            if state.closed {
                return None;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    /// Adds and takes away bytes of an owner.
    fn weigh(&mut self, owner: Owner, more: usize, less: usize) {
        match self.bytes.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, bytes)) => *bytes = (*bytes + more).saturating_sub(less),
            None => self.bytes.push((owner, more)),
        }
        self.bytes.retain(|(_, bytes)| *bytes > 0);
    }

    /// Whether so many bytes more may wait: within the bound, or within the owner's share of it.
    fn has_room(&self, owner: Owner, bytes: usize, most: usize) -> bool {
        let all: usize = self.bytes.iter().map(|(_, bytes)| bytes).sum();
        let own = self.bytes.iter().find(|(known, _)| *known == owner).map_or(0, |(_, bytes)| *bytes);
        let owners = self.bytes.len() + usize::from(own == 0);
        all == 0 || all + bytes <= most || owners > 1 && (own == 0 || own + bytes <= most / owners)
    }

    fn add(&mut self, owner: Owner, task: Task) {
        match self.turns.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, tasks)) => tasks.push_back(task),
            None => self.turns.push_back((owner, VecDeque::from([task]))),
        }
    }
}

impl Threads {
    /// So many threads, which let at most `most` bytes of text wait.
    pub(crate) fn start(count: usize, most: usize) -> std::io::Result<Threads> {
        let threads = Threads { shared: Arc::default(), most };
        for number in 0..count.max(1) {
            let shared = Arc::clone(&threads.shared);
            thread::Builder::new().name(format!("sconce-text-{number}")).spawn(move || {
                while let Some(task) = shared.next() {
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
        {
            let mut state = self.shared.lock();
            if !state.has_room(owner, bytes, self.most) {
                return Err(TooMuch);
            }
            state.weigh(owner, bytes, 0);
            let weight = Weight { owner, bytes, shared: Arc::clone(&self.shared) };
            let task = move || {
                let _weight = weight;
                if !reply.is_closed() {
                    let _ = reply.send(task());
                }
            };
            state.add(owner, Box::new(task));
        }
        self.shared.wake.notify_one();
        Ok(answer.await.ok())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns_and_one_that_floods_leaves_room_for_the_others() {
        let mut state = State::default();
        let (one, two) = (Owner(1), Owner(2));
        let done = Arc::new(Mutex::new(Vec::new()));
        let task = |name: u64| -> Task {
            let done = Arc::clone(&done);
            Box::new(move || done.lock().expect("no panic").push(name))
        };
        for _ in 0..3 {
            state.weigh(one, 40, 0);
            state.add(one, task(1));
        }
        assert!(!state.has_room(one, 1, 100));
        assert!(state.has_room(two, 70, 100), "who has nothing waiting has room");
        state.weigh(two, 30, 0);
        state.add(two, task(2));
        assert!(state.has_room(two, 20, 100) && !state.has_room(two, 30, 100));
        let shared = Shared { state: Mutex::new(state), wake: Condvar::new() };
        shared.lock().closed = true;
        while let Some(task) = shared.next() {
            task();
        }
        assert_eq!(*done.lock().expect("no panic"), [1, 2, 1, 1]);
        shared.lock().weigh(two, 0, 30);
        assert_eq!(shared.lock().bytes, [(one, 120)]);
    }
}
