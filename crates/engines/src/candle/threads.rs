//! Private threads for the CPU: neither the program's global pool nor an environment variable is touched.

use rayon::{ThreadPool, ThreadPoolBuilder};

/// One pool of all threads for lone work, and as many pools of one for work that splits.
pub(super) struct Threads {
    together: Option<ThreadPool>,
    apart: Vec<ThreadPool>,
}

impl Threads {
    /// `count` threads; where the system gives none, work runs on the caller's.
    pub(super) fn new(count: usize) -> Threads {
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

    pub(super) fn count(&self) -> usize {
        self.apart.len().max(1)
    }

    /// Runs `work` with all threads at its disposal.
    pub(super) fn together<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.together {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// Runs `work` once on each thread, where what it starts stays on that thread.
    pub(super) fn apart(&self, work: impl Fn() + Sync) {
        std::thread::scope(|scope| {
            for pool in &self.apart {
                scope.spawn(|| pool.install(&work));
            }
        });
        if self.apart.is_empty() {
            work();
        }
    }
}
