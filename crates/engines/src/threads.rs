//! Private threads for the CPU: neither the program's global pool nor an environment variable is touched.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};
use sconce_core::batch::{Batch, Rows};

/// One pool of all threads for lone work, and as many pools of one for work that splits.
pub(crate) struct Threads {
    together: Option<ThreadPool>,
    apart: Vec<ThreadPool>,
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
        Threads { together: pool(count, "all"), apart: (0..count).filter_map(|_| pool(1, "one")).collect() }
    }

    pub(crate) fn count(&self) -> usize {
        self.apart.len().max(1)
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
        fn on_each(pools: &[ThreadPool], work: &(impl Fn() + Sync)) {
            if let [pool, rest @ ..] = pools {
                pool.in_place_scope(|scope| {
                    scope.spawn(|_| work());
                    on_each(rest, work);
                });
            }
        }
        on_each(&self.apart, &work);
        if self.apart.is_empty() {
            work();
        }
    }

    /// Computes whole sequences in blocks of about `size` tokens, each block on one thread from beginning to end; a
    /// lone block has all threads.
    pub(crate) fn in_blocks<E: Send>(
        &self,
        batch: &Batch,
        size: usize,
        work: impl Fn(&Batch) -> Result<Rows, E> + Sync,
    ) -> Result<Rows, E> {
        let blocks = blocks(batch, self.count(), size);
        if blocks.len() == 1 {
            return self.together(|| work(batch));
        }
        let next = AtomicUsize::new(0);
        let done = Mutex::new(Vec::with_capacity(blocks.len()));
        self.apart(|| {
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let rows = work(&batch.part(block.clone()));
                done.lock().unwrap_or_else(PoisonError::into_inner).push((block.start, rows));
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
    use sconce_core::batch::Want;

    use super::*;

    #[test]
    fn blocks_cover_all_sequences_in_order() {
        for count in 1..40usize {
            let mut batch = Batch::new(Want::Pooled);
            for n in 0..count {
                let length = 1 + n * 37 % 300;
                batch.push(&vec![1; length], &vec![0; length], 0);
            }
            let covered: Vec<usize> = blocks(&batch, 2, 384).into_iter().flatten().collect();
            assert_eq!(covered, (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn few_tokens_are_shared_out_and_many_end_in_small_blocks() {
        let sizes = |count: usize| {
            let mut batch = Batch::new(Want::Pooled);
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
