//! Private threads for the CPU: neither the program's global pool nor an environment variable is touched.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use sconce_core::batch::{Batch, Rows};

/// One pool of all threads for lone work, and as many pools of one for work that splits; after them a spare one, for
/// a batch that comes when every thread has one: it need not wait, for the system shares the processors out.
pub(crate) struct Threads {
    together: Option<ThreadPool>,
    apart: Vec<ThreadPool>,
    count: usize,
    taken: Mutex<Taken>,
}

/// Who is at work.
#[derive(Default)]
struct Taken {
    /// Batches.
    batches: usize,
    /// How many of them each thread has to do with.
    threads: Vec<usize>,
}

/// The threads that a batch has: all of them if it is alone, and else its share of them, those with the least to do.
struct Share<'a> {
    of: &'a Threads,
    alone: bool,
    threads: Vec<usize>,
    /// Those that it still has.
    kept: Mutex<Vec<usize>>,
}

impl Share<'_> {
    /// Leaves a thread to another batch that waits for it, unless it is the last; whether it did.
    fn gives_up(&self, thread: usize) -> bool {
        let mut taken = self.of.lock();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = taken.threads[thread] > 1 && kept.len() > 1;
        if wanted {
            taken.threads[thread] -= 1;
            kept.retain(|&other| other != thread);
        }
        wanted
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut taken = self.of.lock();
        taken.batches -= 1;
        for &thread in self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).iter() {
            taken.threads[thread] -= 1;
        }
    }
}

impl Threads {
    /// `count` threads; where the system gives none, work runs on the caller's.
    pub(crate) fn new(count: usize) -> Threads {
        let pool = |threads: usize, name: &'static str| {
            ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(move |n| format!("sconce-{name}-{n}"))
                .build()
                .ok()
        };
        let count = count.max(1);
        let apart: Vec<ThreadPool> = (0..=count).filter_map(|_| pool(1, "one")).collect();
        let taken = Mutex::new(Taken { batches: 0, threads: vec![0; apart.len()] });
        Threads { together: pool(count, "all"), count: count.min(apart.len()), apart, taken }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn share(&self) -> Share<'_> {
        let mut taken = self.lock();
        taken.batches += 1;
        let mask = if taken.batches > self.count { taken.threads.len() } else { self.count };
        let mut threads: Vec<usize> = (0..mask).collect();
        threads.sort_by_key(|&thread| taken.threads[thread]);
        threads.truncate((self.count / taken.batches).max(1));
        for &thread in &threads {
            taken.threads[thread] += 1;
        }
        Share { of: self, alone: taken.batches == 1, kept: Mutex::new(threads.clone()), threads }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.max(1)
    }

    /// Runs `work` with all threads at its disposal.
    pub(crate) fn together<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.together {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Runs `work` once on each thread, where what it starts stays on that thread.
    pub(crate) fn apart(&self, work: impl Fn() + Sync) {
        self.on_each(&(0..self.count).collect::<Vec<_>>(), &|_| work());
        if self.count == 0 {
            work();
        }
    }

    fn on_each(&self, threads: &[usize], work: &(impl Fn(usize) + Sync)) {
        if let [thread, rest @ ..] = threads {
            self.apart[*thread].in_place_scope(|scope| {
                scope.spawn(|_| work(*thread));
                self.on_each(rest, work);
            });
        }
    }

    /// Computes whole sequences in blocks of about `size` tokens, each block on one thread from beginning to end; a
    /// lone block of a batch that is alone has all threads. Batches that come at once share the
    /// threads: who had all of them leaves some after the block that they are at.
    pub(crate) fn in_blocks<E: Send>(
        &self,
        batch: &Batch,
        size: usize,
        work: impl Fn(&Batch) -> Result<Rows, E> + Sync,
    ) -> Result<Rows, E> {
        let share = self.share();
        let blocks = blocks(batch, share.threads.len().max(1), size);
        if blocks.len() == 1 && share.alone || share.threads.is_empty() {
            return self.together(|| work(batch));
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(blocks.len()));
        self.on_each(&share.threads, &|thread| {
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows = work(&batch.part(block.clone()));
                done.lock().unwrap_or_else(PoisonError::into_inner).push((block.start, rows));
                if share.gives_up(thread) {
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

/// Ranges of sequences of about `size` tokens, half as large towards the end, so that all threads end at about the
/// same time; few tokens are shared out evenly.
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
        let threads = Threads::new(4);
        let alone = threads.share();
        assert!(alone.alone);
        assert_eq!(alone.threads, [0, 1, 2, 3]);
        let second = threads.share();
        assert!(!second.alone);
        assert_eq!(second.threads, [0, 1], "half of them");
        assert_eq!([0, 1, 2, 3].map(|thread| alone.gives_up(thread)), [true, true, false, false]);
        drop(alone);
        assert_eq!(threads.share().threads, [2, 3], "those with the least to do");
        let others: Vec<Share<'_>> = (0..3).map(|_| threads.share()).collect();
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
