//! A team of threads for fork-join parallelism. A decode step has hundreds of short parallel regions: threads spin for a
//! moment between two of them before they park, because waking a parked thread takes longer than most regions.

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins before it parks.
const SPIN: Duration = Duration::from_micros(50);
/// Parts of small items per thread: a thread that another process delays leaves its parts to the others.
const PARTS: usize = 8;
/// Values of a vector that a thread initializes at a time.
const VALUES: usize = 1 << 16;
/// Polls between two looks at the clock.
const POLLS: usize = 64;

/// Bits of the state: the number of threads in the region, flags, and from bit 32 on the number of the region.
const ENTERED: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const AWAITED: u64 = 1 << 17;
const STOP: u64 = 1 << 18;
const REGION: u32 = 32;

/// A team of threads: the caller of a parallel region and the threads that help it.
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<(Thread, JoinHandle<()>)>,
    /// A region is being computed.
    in_use: AtomicBool,
}

struct Shared {
    state: AtomicU64,
    region: AtomicPtr<Region>,
    /// Whether each helper is parked.
    parked: Vec<AtomicBool>,
    /// The thread that waits until all helpers have left the region.
    awaiting: Mutex<Option<Thread>>,
}

/// A parallel region, on the stack of its caller.
struct Region {
    run: unsafe fn(*const (), usize),
    work: *const (),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

impl Region {
    /// Runs tasks until none is left.
    fn run(&self) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.tasks {
                return;
            }
            // SAFETY: `run` and `work` belong together, and `work` lives until all helpers have left the region.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (self.run)(self.work, task) }));
            if let Err(panic) = result {
                self.next.store(self.tasks, Ordering::Relaxed);
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
    }
}

impl Team {
    /// A team of `count` threads, the caller of a region included. If the system refuses threads, there are fewer.
    pub fn new(count: usize) -> Team {
        let helpers = count.clamp(1, ENTERED as usize) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            region: AtomicPtr::default(),
            parked: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            awaiting: Mutex::new(None),
        });
        let start = |number: usize| {
            let own = Arc::clone(&shared);
            let thread = thread::Builder::new().name(format!("sconce-team-{}", number + 1));
            thread.spawn(move || own.help(number)).ok()
        };
        let helpers = (0..helpers).map_while(start).map(|handle| (handle.thread().clone(), handle));
        let helpers = helpers.collect();
        Team { shared, helpers, in_use: AtomicBool::new(false) }
    }

    /// A team of the caller alone.
    pub fn single() -> Team {
        Team::new(1)
    }

    /// Number of threads, the caller included.
    pub fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `work` for each of `0..tasks` on the threads of the team, and returns when all are done. A region in another
    /// region, or at the same time as another, runs on its caller alone.
    ///
    /// # Panics
    ///
    /// With the first panic of `work`.
    pub fn for_each<F: Fn(usize) + Sync>(&self, tasks: usize, work: F) {
        /// # Safety
        ///
        /// `work` points to an `F`.
        unsafe fn run<F: Fn(usize)>(work: *const (), task: usize) {
            // SAFETY: as the caller guarantees.
            unsafe { (*work.cast::<F>())(task) }
        }
        if tasks <= 1 || self.helpers.is_empty() || self.in_use.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(work);
        }
        let region = Region {
            run: run::<F>,
            work: (&raw const work).cast(),
            tasks,
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
        };
        self.shared.open(&region, &self.helpers);
        region.run();
        self.shared.close();
        self.in_use.store(false, Ordering::Release);
        if let Some(panic) = region.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// The results of `work` for each of `0..tasks`, in order.
    pub fn map<T: Send>(&self, tasks: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let results: Vec<Mutex<Option<T>>> = (0..tasks).map(|_| Mutex::new(None)).collect();
        self.for_each(tasks, |task| {
            let result = work(task);
            *results[task].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        });
        results
            .into_iter()
            .filter_map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    /// Many small items in parts for [`Team::each`]: a thread claims several items at a time.
    pub fn in_parts<T>(&self, items: Vec<T>) -> impl Iterator<Item = Vec<T>> + use<T> {
        let size = items.len().div_ceil(self.count() * PARTS).max(1);
        let mut items = items.into_iter();
        std::iter::from_fn(move || {
            let part: Vec<T> = items.by_ref().take(size).collect();
            (!part.is_empty()).then_some(part)
        })
    }

    /// Runs `work` for each item.
    pub fn each<T: Send>(&self, items: impl IntoIterator<Item = T>, work: impl Fn(T) + Sync) {
        let items: Vec<Mutex<Option<T>>> = items.into_iter().map(|item| Mutex::new(Some(item))).collect();
        self.for_each(items.len(), |task| {
            let item = items[task].lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(item) = item {
                work(item);
            }
        });
    }

    /// `count` zeros, which all threads write.
    pub fn zeros(&self, count: usize) -> Vec<f32> {
        let mut zeros = Vec::with_capacity(count);
        let parts = zeros.spare_capacity_mut()[..count].chunks_mut(VALUES);
        self.each(parts, |part| part.fill(MaybeUninit::new(0.0)));
        // SAFETY: all of them are initialized.
        unsafe { zeros.set_len(count) };
        zeros
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::SeqCst);
        for (thread, handle) in self.helpers.drain(..) {
            thread.unpark();
            // A helper catches panics.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Opens a region. All helpers have left the one before.
    fn open(&self, region: &Region, helpers: &[(Thread, JoinHandle<()>)]) {
        self.region.store(std::ptr::from_ref(region).cast_mut(), Ordering::Relaxed);
        let before = self.state.load(Ordering::Relaxed) >> REGION;
        // A wrapped number is another one than that before it, which is all that helpers compare.
        self.state.store((before + 1) << REGION | OPEN, Ordering::SeqCst);
        for (parked, (thread, _)) in self.parked.iter().zip(helpers) {
            if parked.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    /// Closes the region, and waits until all helpers have left it.
    fn close(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        let is_left = |state: u64| state & ENTERED == 0;
        if is_left(state) || spin(|| is_left(self.state.load(Ordering::Acquire))) {
            return;
        }
        *self.awaiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        state = self.state.fetch_or(AWAITED, Ordering::SeqCst);
        while !is_left(state) {
            thread::park();
            state = self.state.load(Ordering::Acquire);
        }
    }

    /// The work of a helper, until the team ends.
    fn help(&self, number: usize) {
        let mut last = 0;
        loop {
            let state = self.next_region(number, last);
            if state & STOP != 0 {
                return;
            }
            // Fails if the region was closed meanwhile, or if another helper entered.
            let entered = self.state.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::Relaxed);
            if entered.is_err() {
                continue;
            }
            last = state >> REGION;
            // SAFETY: the region was open when this thread entered it, and its caller waits until all have left.
            unsafe { (*self.region.load(Ordering::Relaxed)).run() };
            let before = self.state.fetch_sub(1, Ordering::AcqRel);
            if before & ENTERED == 1 && before & AWAITED != 0 {
                // It stays: a helper that comes late here may find the caller of the next region.
                let awaiting = self.awaiting.lock().unwrap_or_else(PoisonError::into_inner);
                awaiting.iter().for_each(Thread::unpark);
            }
        }
    }

    /// Waits for an open region other than `last`, or for the end of the team.
    fn next_region(&self, number: usize, last: u64) -> u64 {
        let due = || {
            let state = self.state.load(Ordering::SeqCst);
            let is_due = state & STOP != 0 || state & OPEN != 0 && state >> REGION != last;
            is_due.then_some(state)
        };
        loop {
            if spin(|| due().is_some())
                && let Some(state) = due()
            {
                return state;
            }
            self.parked[number].store(true, Ordering::SeqCst);
            if due().is_none() {
                thread::park();
            }
            self.parked[number].store(false, Ordering::SeqCst);
        }
    }
}

/// Polls `is_done` for a moment. Returns whether it came true.
fn spin(is_done: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..POLLS {
            if is_done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}
