//! TextPool for work on text that takes longer than a connection may wait: parsing, tokenizing, and writing long
//! answers. A request is cut into pieces of bounded size. Tenants take turns piece by piece, and so do the requests of
//! one tenant. One thread more runs short requests only, so that a line of text never waits behind a long list.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use sconce_http::fair_quota::FairQuota;
use sconce_http::keys::TenantId;

/// Bytes of a request that is short: a text of some hundred words.
const SHORT: usize = 4096;
/// Bytes of text after which a piece ends. A text is never split.
const PIECE: usize = 16 << 10;
/// Texts after which a piece ends.
const PIECE_TEXTS: usize = 256;

type Task = Box<dyn FnOnce() + Send>;

/// TextPool that work on text, with a bound on how much of it waits.
pub(crate) struct TextPool {
    shared: Arc<Shared>,
    most: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread that does only what is short, and for the others.
    wake: [Condvar; 2],
}

/// The tenants that have something waiting, the next to have its turn first, each with its requests as lists of pieces.
#[derive(Default)]
struct Turns(VecDeque<(TenantId, VecDeque<VecDeque<Task>>)>);

#[derive(Default)]
struct State {
    short: Turns,
    long: Turns,
    /// Bytes that wait or are worked on.
    bytes: FairQuota,
    closed: bool,
}

/// Too much text waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// The bytes of one request, given back when it is done.
struct Weight {
    tenant: TenantId,
    bytes: usize,
    shared: Arc<Shared>,
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.shared.lock().bytes.weigh(self.tenant, 0, self.bytes);
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
    /// The next piece of the request whose turn it is, of the tenant whose turn it is.
    fn next(&mut self) -> Option<Task> {
        let (tenant, mut requests) = self.0.pop_front()?;
        let mut pieces = requests.pop_front().unwrap_or_default();
        let task = pieces.pop_front();
        if !pieces.is_empty() {
            requests.push_back(pieces);
        }
        if !requests.is_empty() {
            self.0.push_back((tenant, requests));
        }
        task
    }

    fn add(&mut self, tenant: TenantId, pieces: VecDeque<Task>) {
        match self.0.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, requests)) => requests.push_back(pieces),
            None => self.0.push_back((tenant, VecDeque::from([pieces]))),
        }
    }
}

/// A request in pieces: what they gave so far, and what is done with all of it.
struct Gathering<T, E, R> {
    progress: Mutex<Progress<T, E, R>>,
    _weight: Weight,
}

struct Progress<T, E, R> {
    parts: Vec<Option<T>>,
    left: usize,
    /// Taken by whoever ends the request: its last piece, or the first that fails.
    end: Option<End<T, E, R>>,
}

struct End<T, E, R> {
    then: Box<dyn FnOnce(Vec<T>) -> Result<R, E> + Send>,
    reply: oneshot::Sender<Result<R, E>>,
}

impl<T, E, R> Gathering<T, E, R> {
    fn lock(&self) -> MutexGuard<'_, Progress<T, E, R>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits for its pieces.
    fn is_over(&self) -> bool {
        self.lock().end.as_ref().is_none_or(|end| end.reply.is_closed())
    }

    fn put(&self, at: usize, part: Result<T, E>) {
        let mut progress = self.lock();
        let ended = match part {
            Ok(part) => {
                progress.parts[at] = Some(part);
                progress.left -= 1;
                if progress.left > 0 {
                    return;
                }
                Ok(std::mem::take(&mut progress.parts))
            }
            Err(error) => Err(error),
        };
        let end = progress.end.take();
        drop(progress);
        if let Some(End { then, reply }) = end {
            let _ = reply.send(ended.and_then(|parts| then(parts.into_iter().flatten().collect())));
        }
    }
}

/// Cuts texts of so many bytes each into pieces of bounded size; at least one.
fn pieces(bytes: &[usize]) -> Vec<Range<usize>> {
    let (mut pieces, mut start, mut sum) = (Vec::new(), 0, 0);
    for (at, bytes) in bytes.iter().enumerate() {
        sum += bytes;
        if sum >= PIECE || at + 1 - start >= PIECE_TEXTS {
            pieces.push(start..at + 1);
            (start, sum) = (at + 1, 0);
        }
    }
    if start < bytes.len() || pieces.is_empty() {
        pieces.push(start..bytes.len());
    }
    pieces
}

impl TextPool {
    /// `count` threads, and one for short requests, which let at most `most` bytes of text wait.
    pub(crate) fn start(count: usize, most: usize) -> std::io::Result<TextPool> {
        let threads = TextPool { shared: Arc::default(), most };
        for number in 0..=count.max(1) {
            let long = number > 0;
            let shared = Arc::clone(&threads.shared);
            thread::Builder::new().name(format!("sconce-text-{number}")).spawn(move || {
                while let Some(task) = shared.next(long) {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
                }
            })?;
        }
        Ok(threads)
    }

    /// Runs `task`, which holds `bytes` of text, as one piece.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: TenantId,
        bytes: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, TooMuch> {
        let none = |_: Range<usize>| Ok::<(), std::convert::Infallible>(());
        let ran = self.run_pieces(tenant, &[bytes], none, move |_| Ok(task())).await?;
        Ok(ran.map(|Ok(value)| value))
    }

    /// Runs `each` on ranges of texts of so many `bytes`, several at once, and `then` on all that they gave, in their
    /// order. Pieces that nobody waits for when their turn comes are not run, and the first error ends the request.
    /// None where a piece panicked.
    pub(crate) async fn run_pieces<T, E, R>(
        &self,
        tenant: TenantId,
        bytes: &[usize],
        each: impl Fn(Range<usize>) -> Result<T, E> + Send + Sync + 'static,
        then: impl FnOnce(Vec<T>) -> Result<R, E> + Send + 'static,
    ) -> Result<Option<Result<R, E>>, TooMuch>
    where
        T: Send + 'static,
        E: Send + 'static,
        R: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let (all, ranges) = (bytes.iter().sum(), pieces(bytes));
        // What holds no text at all is a long answer that is written.
        let short = (1..=SHORT).contains(&all);
        let several = ranges.len() > 1;
        {
            let mut state = self.shared.lock();
            if !state.bytes.has_room(tenant, all, self.most) {
                return Err(TooMuch);
            }
            state.bytes.weigh(tenant, all, 0);
            let end = Some(End { then: Box::new(then), reply });
            let parts = ranges.iter().map(|_| None).collect();
            let gathering = Arc::new(Gathering {
                progress: Mutex::new(Progress { parts, left: ranges.len(), end }),
                _weight: Weight { tenant, bytes: all, shared: Arc::clone(&self.shared) },
            });
            let each = Arc::new(each);
            let tasks = ranges.into_iter().enumerate().map(|(at, range)| {
                let (gathering, each) = (Arc::clone(&gathering), Arc::clone(&each));
                let task: Task = Box::new(move || {
                    if !gathering.is_over() {
                        gathering.put(at, each(range));
                    }
                });
                task
            });
            let turns = if short { &mut state.short } else { &mut state.long };
            turns.add(tenant, tasks.collect());
        }
        for wake in self.shared.wake.iter().skip(usize::from(!short)) {
            if several { wake.notify_all() } else { wake.notify_one() }
        }
        Ok(answer.await.ok())
    }
}

impl Drop for TextPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.iter().for_each(Condvar::notify_all);
    }
}

#[cfg(test)]
mod tests;
