//! The thread pool for CPU-bound work on text: parsing, tokenizing, and writing long responses. A request is split into
//! pieces of bounded size. Tenants are served round-robin piece by piece, and so are the requests of one tenant. One
//! dedicated thread runs short requests only, so that a short text never waits behind a long list.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use sconce_http::fair_quota::FairQuota;
use sconce_http::keys::TenantId;

/// Maximum bytes of a short request.
const SHORT_BYTES: usize = 4096;
/// Target bytes of a piece. A text is never split.
const PIECE_BYTES: usize = 16 << 10;
/// Maximum number of texts of a piece.
const PIECE_TEXTS: usize = 256;

type Task = Box<dyn FnOnce() + Send>;

/// A thread pool with a limit on the bytes of text that wait.
pub(crate) struct TextPool {
    shared: Arc<Shared>,
    max_bytes: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// One for the thread of short requests, one for all other threads.
    wake: [Condvar; 2],
}

/// Waiting requests as lists of pieces, by tenant, in round-robin order: the next tenant is at the front.
#[derive(Default)]
struct RoundRobin(VecDeque<(TenantId, VecDeque<VecDeque<Task>>)>);

#[derive(Default)]
struct State {
    short: RoundRobin,
    long: RoundRobin,
    /// Bytes that wait or are in flight.
    quota: FairQuota,
    closed: bool,
}

/// The pool is full: too much text waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolFull;

/// The bytes of one request, released on drop.
struct QuotaGuard {
    tenant: TenantId,
    bytes: usize,
    shared: Arc<Shared>,
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        self.shared.lock().quota.adjust(self.tenant, 0, self.bytes);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until a task is due, short requests first; `None` once the pool is closed and empty. Without `long` only
    /// short requests are served.
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

impl RoundRobin {
    /// The next piece of the next request of the next tenant.
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

    fn push(&mut self, tenant: TenantId, pieces: VecDeque<Task>) {
        match self.0.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, requests)) => requests.push_back(pieces),
            None => self.0.push_back((tenant, VecDeque::from([pieces]))),
        }
    }
}

/// A request whose pieces run on several threads.
struct PendingRequest<T, E, R> {
    progress: Mutex<Progress<T, E, R>>,
    _quota: QuotaGuard,
}

struct Progress<T, E, R> {
    /// Results of the pieces, in order.
    parts: Vec<Option<T>>,
    /// Number of pieces that have no result yet.
    remaining: usize,
    /// Taken by the piece that completes the request: the last one, or the first that fails.
    completion: Option<Completion<T, E, R>>,
}

struct Completion<T, E, R> {
    finish: Box<dyn FnOnce(Vec<T>) -> Result<R, E> + Send>,
    reply: oneshot::Sender<Result<R, E>>,
}

impl<T, E, R> PendingRequest<T, E, R> {
    fn lock(&self) -> MutexGuard<'_, Progress<T, E, R>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the request is completed or its client is gone, so that its other pieces need not run.
    fn is_done(&self) -> bool {
        self.lock().completion.as_ref().is_none_or(|completion| completion.reply.is_closed())
    }

    /// Stores the result of a piece. The last result, or the first error, completes the request.
    fn complete(&self, at: usize, part: Result<T, E>) {
        let mut progress = self.lock();
        let results = match part {
            Ok(part) => {
                progress.parts[at] = Some(part);
                progress.remaining -= 1;
                if progress.remaining > 0 {
                    return;
                }
                Ok(std::mem::take(&mut progress.parts))
            }
            Err(error) => Err(error),
        };
        let completion = progress.completion.take();
        drop(progress);
        if let Some(Completion { finish, reply }) = completion {
            let _ = reply.send(results.and_then(|parts| finish(parts.into_iter().flatten().collect())));
        }
    }
}

/// Splits texts of the lengths `bytes` into pieces of bounded size, at least one.
fn pieces(bytes: &[usize]) -> Vec<Range<usize>> {
    let (mut pieces, mut start, mut sum) = (Vec::new(), 0, 0);
    for (at, bytes) in bytes.iter().enumerate() {
        sum += bytes;
        if sum >= PIECE_BYTES || at + 1 - start >= PIECE_TEXTS {
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
    /// Starts `count` threads and one for short requests. At most `max_bytes` of text may wait.
    pub(crate) fn start(count: usize, max_bytes: usize) -> std::io::Result<TextPool> {
        let pool = TextPool { shared: Arc::default(), max_bytes };
        for number in 0..=count.max(1) {
            let long = number > 0;
            let shared = Arc::clone(&pool.shared);
            thread::Builder::new().name(format!("sconce-text-{number}")).spawn(move || {
                while let Some(task) = shared.next(long) {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
                }
            })?;
        }
        Ok(pool)
    }

    /// Runs `task`, which holds `bytes` of text, as one piece. `None` if it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        tenant: TenantId,
        bytes: usize,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, PoolFull> {
        let none = |_: Range<usize>| Ok::<(), std::convert::Infallible>(());
        let ran = self.run_pieces(tenant, &[bytes], none, move |_| Ok(task())).await?;
        Ok(ran.map(|Ok(value)| value))
    }

    /// Runs `each` on ranges of texts of the lengths `bytes`, concurrently, and `finish` on all results in order. The first
    /// error completes the request. Pieces of a cancelled request are skipped. `None` if a piece panicked.
    pub(crate) async fn run_pieces<T, E, R>(
        &self,
        tenant: TenantId,
        bytes: &[usize],
        each: impl Fn(Range<usize>) -> Result<T, E> + Send + Sync + 'static,
        finish: impl FnOnce(Vec<T>) -> Result<R, E> + Send + 'static,
    ) -> Result<Option<Result<R, E>>, PoolFull>
    where
        T: Send + 'static,
        E: Send + 'static,
        R: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let (total, ranges) = (bytes.iter().sum(), pieces(bytes));
        // A task without text writes a long response.
        let short = (1..=SHORT_BYTES).contains(&total);
        let several = ranges.len() > 1;
        {
            let mut state = self.shared.lock();
            if !state.quota.admits(tenant, total, self.max_bytes) {
                return Err(PoolFull);
            }
            state.quota.adjust(tenant, total, 0);
            let completion = Some(Completion { finish: Box::new(finish), reply });
            let parts = ranges.iter().map(|_| None).collect();
            let request = Arc::new(PendingRequest {
                progress: Mutex::new(Progress { parts, remaining: ranges.len(), completion }),
                _quota: QuotaGuard { tenant, bytes: total, shared: Arc::clone(&self.shared) },
            });
            let each = Arc::new(each);
            let tasks = ranges.into_iter().enumerate().map(|(at, range)| {
                let (request, each) = (Arc::clone(&request), Arc::clone(&each));
                let task: Task = Box::new(move || {
                    if !request.is_done() {
                        request.complete(at, each(range));
                    }
                });
                task
            });
            let queue = if short { &mut state.short } else { &mut state.long };
            queue.push(tenant, tasks.collect());
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
