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
        std::thread::scope(|scope| {
            for pool in &self.apart {
                scope.spawn(|| pool.install(&work));
            }
        });
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

/// Ranges of sequences of at most about `size` tokens, as many for each thread.
fn blocks(batch: &Batch, threads: usize, size: usize) -> Vec<Range<usize>> {
    let rounds = batch.tokens().div_ceil(threads * size);
    let target = batch.tokens().div_ceil(threads * rounds).max(size / 8);
    let mut blocks = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (index, sequence) in batch.sequences.iter().enumerate() {
        if tokens > 0 && tokens + sequence.length / 2 > target {
            blocks.push(start..index);
            (start, tokens) = (index, 0);
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
}
