//! Private CPU threads; the global rayon pool and environment variables are not touched.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use sconce_core::batch::{Batch, Rows};
use sconce_kernels::team::Team;

/// All threads for a single block, and pools of one thread each for batches of several blocks. One spare pool serves a
/// batch that arrives when every thread is busy: the system schedules it.
pub(crate) struct Threads {
    all: AllThreads,
    /// A team of the caller alone, for blocks on one thread.
    single: Team,
    /// Held while all threads work on one piece. A thread of a pool that waits for another would take a second piece of work
    /// into the scratch memory of the first.
    all_in_use: Mutex<()>,
    singles: Vec<ThreadPool>,
    count: usize,
    usage: Mutex<Usage>,
}

/// All threads at once.
enum AllThreads {
    /// A pool, on which Candle runs its own parallel code.
    Pool(Option<ThreadPool>),
    /// A team with the caller.
    Team(Team),
}

/// Current use of the threads.
#[derive(Default)]
struct Usage {
    /// Running batches.
    batches: usize,
    /// Number of batches on each thread.
    threads: Vec<usize>,
}

/// The threads of a batch: all of them if no other batch runs, otherwise its share of the least busy ones.
struct ThreadShare<'a> {
    of: &'a Threads,
    alone: bool,
    threads: Vec<usize>,
    /// Threads that it still holds.
    kept: Mutex<Vec<usize>>,
}

impl ThreadShare<'_> {
    /// Releases a thread to another batch that shares it, unless it is the last one; returns whether it did.
    fn release(&self, thread: usize) -> bool {
        let mut usage = self.of.lock();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = usage.threads[thread] > 1 && kept.len() > 1;
        if wanted {
            usage.threads[thread] -= 1;
            kept.retain(|&other| other != thread);
        }
        wanted
    }
}

impl Drop for ThreadShare<'_> {
    fn drop(&mut self) {
        let mut usage = self.of.lock();
        usage.batches -= 1;
        for &thread in self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).iter() {
            usage.threads[thread] -= 1;
        }
    }
}

impl Threads {
    /// Starts `count` threads, and a pool of as many. If the system refuses, work runs on the caller's thread.
    pub(crate) fn with_pool(count: usize) -> Threads {
        Threads::new(count, AllThreads::Pool(pool(count.max(1), "all")))
    }

    /// Starts `count` threads, and a team of as many.
    pub(crate) fn with_team(count: usize) -> Threads {
        Threads::new(count, AllThreads::Team(Team::new(count)))
    }

    fn new(count: usize, all: AllThreads) -> Threads {
        let count = count.max(1);
        let singles: Vec<ThreadPool> = (0..=count).filter_map(|_| pool(1, "one")).collect();
        let usage = Mutex::new(Usage { batches: 0, threads: vec![0; singles.len()] });
        Threads {
            all,
            single: Team::single(),
            all_in_use: Mutex::new(()),
            count: count.min(singles.len()),
            singles,
            usage,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share(&self) -> ThreadShare<'_> {
        let mut usage = self.lock();
        usage.batches += 1;
        let candidates = if usage.batches > self.count { usage.threads.len() } else { self.count };
        let mut threads: Vec<usize> = (0..candidates).collect();
        threads.sort_by_key(|&thread| usage.threads[thread]);
        threads.truncate((self.count / usage.batches).max(1));
        for &thread in &threads {
            usage.threads[thread] += 1;
        }
        ThreadShare { of: self, alone: usage.batches == 1, kept: Mutex::new(threads.clone()), threads }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.max(1)
    }

    /// Runs `work` with all threads, after other work there.
    pub(crate) fn all_threads<T: Send>(&self, work: impl FnOnce(&Team) -> T + Send) -> T {
        let _in_use = self.all_in_use.lock().unwrap_or_else(PoisonError::into_inner);
        self.install(work)
    }

    fn install<T: Send>(&self, work: impl FnOnce(&Team) -> T + Send) -> T {
        match &self.all {
            AllThreads::Pool(Some(pool)) => pool.install(|| work(&self.single)),
            AllThreads::Pool(None) => work(&self.single),
            AllThreads::Team(team) => work(team),
        }
    }

    /// Runs `work` once on each single-thread pool.
    pub(crate) fn singles(&self, work: impl Fn() + Sync) {
        self.on_each(&(0..self.count).collect::<Vec<_>>(), &|_| work());
        if self.count == 0 {
            work();
        }
    }

    fn on_each(&self, threads: &[usize], work: &(impl Fn(usize) + Sync)) {
        if let [thread, rest @ ..] = threads {
            self.singles[*thread].in_place_scope(|scope| {
                scope.spawn(|_| work(*thread));
                self.on_each(rest, work);
            });
        }
    }

    /// Computes whole sequences in blocks of about `size` tokens, each block on one thread. A single block of a single
    /// batch uses all threads. Concurrent batches share the threads: a batch that holds all of them releases some after
    /// the current block.
    pub(crate) fn in_blocks<E: Send>(
        &self,
        batch: &Batch,
        size: usize,
        work: impl Fn(&Batch, &Team) -> Result<Rows, E> + Sync,
    ) -> Result<Rows, E> {
        let share = self.share();
        let blocks = blocks(batch, share.threads.len().max(1), size);
        if share.threads.is_empty() {
            return self.all_threads(|team| work(batch, team));
        }
        if blocks.len() == 1
            && share.alone
            && let Ok(_in_use) = self.all_in_use.try_lock()
        {
            return self.install(|team| work(batch, team));
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(blocks.len()));
        self.on_each(&share.threads, &|thread| {
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows = work(&batch.part(block.clone()), &self.single);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((block.start, rows));
                if share.release(thread) {
                    return;
                }
            }
        });
        let mut parts = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        parts.sort_by_key(|(start, _)| *start);
        let mut all = Rows::default();
        for (_, rows) in parts {
            let rows = rows?;
            all.width = rows.width;
            all.values.extend(rows.values);
            all.norms.extend(rows.norms);
        }
        Ok(all)
    }
}

/// A pool of named threads, if the system allows it.
fn pool(threads: usize, name: &'static str) -> Option<ThreadPool> {
    let names = move |n| format!("sconce-{name}-{n}");
    ThreadPoolBuilder::new().num_threads(threads).thread_name(names).build().ok()
}

/// Ranges of sequences of about `size` tokens, smaller towards the end, so that all threads finish together; few tokens
/// are split evenly.
fn blocks(batch: &Batch, threads: usize, size: usize) -> Vec<Range<usize>> {
    let total = batch.tokens();
    let (share, least) = if total <= threads * size { (1, size / 8) } else { (2, size / 2) };
    let target = |left: usize| left.div_ceil(threads * share).clamp(least, size);
    let mut blocks = Vec::new();
    let (mut start, mut tokens, mut aim) = (0, 0, target(total));
    let mut left = total;
    for (index, sequence) in batch.sequences.iter().enumerate() {
        if tokens > 0 && tokens + sequence.length / 2 > aim {
            blocks.push(start..index);
            left -= tokens;
            (start, tokens) = (index, 0);
            if share > 1 {
                aim = target(left);
            }
        }
        tokens += sequence.length;
    }
    blocks.push(start..batch.sequences.len());
    blocks
}

#[cfg(test)]
mod tests {
    use sconce_core::batch::OutputKind;

    use super::*;

    #[test]
    fn blocks_cover_all_sequences_in_order() {
        for count in 1..40usize {
            let mut batch = Batch::new(OutputKind::Pooled);
            for n in 0..count {
                let length = 1 + n * 37 % 300;
                batch.push(&vec![1; length], &vec![0; length], 0);
            }
            let covered: Vec<usize> = blocks(&batch, 2, 384).into_iter().flatten().collect();
            assert_eq!(covered, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn batches_that_come_at_once_share_the_threads() {
        let threads = Threads::with_team(4);
        let alone = threads.share();
        assert!(alone.alone);
        assert_eq!(alone.threads, [0, 1, 2, 3]);
        let second = threads.share();
        assert!(!second.alone);
        assert_eq!(second.threads, [0, 1], "half of them");
        assert_eq!([0, 1, 2, 3].map(|thread| alone.release(thread)), [true, true, false, false]);
        drop(alone);
        assert_eq!(threads.share().threads, [2, 3], "those with the least to do");
        let others: Vec<ThreadShare<'_>> = (0..3).map(|_| threads.share()).collect();
        assert_eq!(
            others.iter().map(|share| share.threads.clone()).collect::<Vec<_>>(),
            [[2, 3].as_slice(), &[0], &[1]]
        );
        assert_eq!(threads.share().threads, [4], "who comes when all have one does not wait");
        drop((second, others));
        assert_eq!(threads.lock().threads, [0; 5]);
    }

    #[test]
    fn few_tokens_are_shared_out_and_many_end_in_small_blocks() {
        let sizes = |count: usize| {
            let mut batch = Batch::new(OutputKind::Pooled);
            (0..count).for_each(|_| batch.push(&[1; 16], &[0; 16], 0));
            blocks(&batch, 2, 256).into_iter().map(|block| block.len() * 16).collect::<Vec<_>>()
        };
        assert_eq!(sizes(1), [16]);
        assert_eq!(sizes(8), [64, 64]);
        assert_eq!(sizes(32), [256, 256]);
        let many = sizes(250);
        assert!(
            many[..10].iter().all(|size| *size == 256)
                && many[many.len() - 2..].iter().all(|size| *size <= 128)
        );
    }
}
