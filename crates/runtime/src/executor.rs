//! The threads that run model code. An accelerator has one thread, which loads and unloads every model there and runs
//! one batch at a time, so that no driver is ever entered twice. On the CPU every model has threads of its own, so that
//! one that hangs or loads holds up no other. Models that can do with more have hands beside, each with a batch of its
//! own. What panics or hangs in model code ends here.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Output};
use sconce_core::device::Device;
use sconce_core::engine::{Cost, Encoder, Engine, EngineError, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use crate::starvation::RunDelays;

/// How often whoever waits looks whether the executor still lives. Timeout is counted in glances and not by the clock: a
/// process that was stopped, or a machine that slept, has not waited meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The least part of the elapsed time that counts, however long threads waited for a CPU: what hangs is found in the end.
const LEAST_COUNTED: u32 = 50;

/// The executors of one runtime: of each accelerator one. Those of the CPU belong to their models.
#[derive(Default)]
pub(crate) struct DeviceExecutors {
    executors: Mutex<HashMap<Device, DeviceExecutor>>,
    next: AtomicU64,
}

/// The way to an executor's thread, and to its hands.
#[derive(Clone)]
struct DeviceExecutor {
    jobs: Sender<Job>,
    concurrency: Sender<Job>,
    pool: Arc<WorkerPool>,
}

/// What the threads of an executor have in common.
struct WorkerPool {
    device: Device,
    models: Mutex<HashMap<u64, Arc<dyn Encoder>>>,
    /// Where the hands find their jobs.
    jobs: Mutex<Receiver<Job>>,
    /// How many hands there are.
    concurrency: Mutex<usize>,
    /// Seconds after which the executor was given up.
    hung: OnceLock<f64>,
}

/// A model loaded on an executor. Dropping it unloads it.
pub(crate) struct Loaded {
    id: u64,
    executor: DeviceExecutor,
    pub(crate) cost: Cost,
    pub(crate) concurrency: usize,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.executor.pool.device == Device::Cpu {
            let model = self.executor.pool.models().remove(&self.id);
            drop(model);
        } else {
            let _ = self.executor.jobs.send(Job::Unload(self.id));
        }
    }
}

/// Why an executor gave no rows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecutorError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("it panicked: {0}")]
    Panicked(String),
    #[error("it gave no answer in {0:.1} s")]
    Hung(f64),
    #[error("its executor is gone")]
    Gone,
}

enum Job {
    Load(u64, Arc<dyn Engine>, Arc<ModelSpec>, Placement, Reply<Result<(Cost, usize), Obstacle>>),
    Encode(u64, Arc<Batch>, Reply<Result<Output, ExecutorError>>),
    Unload(u64),
    Settle(Reply<()>),
}

/// What an executor says of a job: that its turn has come, then what came of it.
enum Word<T> {
    Begun,
    Done(T),
}

type Reply<T> = SyncSender<Word<T>>;

impl DeviceExecutors {
    fn executor(&self, device: Device) -> DeviceExecutor {
        if device == Device::Cpu {
            return DeviceExecutor::start(device);
        }
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        executors.entry(device).or_insert_with(|| DeviceExecutor::start(device)).clone()
    }

    /// Loads a model on its device's executor, waiting at most `timeout` once its turn has come. Where the engine can
    /// load on any thread, batches of other models on the device go on meanwhile.
    pub(crate) fn load(
        &self,
        engine: &Arc<dyn Engine>,
        subject: &Arc<ModelSpec>,
        placement: &Placement,
        timeout: Duration,
    ) -> Result<Loaded, Obstacle> {
        let executor = self.executor(placement.device);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let job = |reply| Job::Load(id, Arc::clone(engine), Arc::clone(subject), placement.clone(), reply);
        // On the CPU the executor is the model's own.
        let beside = placement.device != Device::Cpu && engine.loads_on_any_thread();
        let loader = beside.then(|| executor.pool.start());
        match run(&executor, loader.as_ref().unwrap_or(&executor.jobs), timeout, job) {
            Ok(answer) => {
                let (cost, concurrency) = answer?;
                let concurrency =
                    if concurrency > 1 && executor.pool.grow(concurrency) { concurrency } else { 1 };
                Ok(Loaded { id, executor, cost, concurrency })
            }
            Err(ExecutorError::Hung(seconds)) => {
                if !beside {
                    self.abandon(&executor, timeout);
                }
                Err(Obstacle::TimedOut { case: "loading".to_owned(), seconds })
            }
            Err(error) => Err(Obstacle::LoadFailed { says: error.to_string() }),
        }
    }

    /// Computes a batch, waiting at most `timeout` once its turn has come; an executor that hangs is abandoned with
    /// all that it holds.
    pub(crate) fn encode(
        &self,
        loaded: &Loaded,
        batch: &Arc<Batch>,
        timeout: Duration,
    ) -> Result<Output, ExecutorError> {
        let job = |reply| Job::Encode(loaded.id, Arc::clone(batch), reply);
        let to = if loaded.concurrency > 1 { &loaded.executor.concurrency } else { &loaded.executor.jobs };
        let answer = run(&loaded.executor, to, timeout, job);
        if let Err(ExecutorError::Hung(_)) = answer {
            self.abandon(&loaded.executor, timeout);
        }
        answer?
    }

    /// Waits until all that was asked before is done, such as unloading; not for executors that hang.
    pub(crate) fn settle(&self) {
        let executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for executor in executors.values() {
            let _ = run(executor, &executor.jobs, POLL_INTERVAL, Job::Settle);
        }
    }

    /// Lets the next job on the executor's device start a new executor, unless one has already.
    fn abandon(&self, executor: &DeviceExecutor, timeout: Duration) {
        let _ = executor.pool.hung.set(timeout.as_secs_f64());
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        let device = executor.pool.device;
        if executors.get(&device).is_some_and(|current| Arc::ptr_eq(&current.pool, &executor.pool)) {
            executors.remove(&device);
        }
        drop(executors);
        // Those of a driver stay: nobody else may enter it.
        if device == Device::Cpu {
            let models = std::mem::take(&mut *executor.pool.models());
            drop(models);
        }
    }
}

/// Runs a job: those before it take the time they need, it takes at most `timeout`, not counting the time that
/// threads of this process waited for a CPU.
fn run<T>(
    executor: &DeviceExecutor,
    to: &Sender<Job>,
    timeout: Duration,
    job: impl FnOnce(Reply<T>) -> Job,
) -> Result<T, ExecutorError> {
    let hung = &executor.pool.hung;
    let lost = || hung.get().map_or(ExecutorError::Gone, |&seconds| ExecutorError::Hung(seconds));
    let (reply, words) = mpsc::sync_channel(2);
    to.send(job(reply)).map_err(|_| lost())?;
    let mut begun = false;
    let mut elapsed = Duration::ZERO;
    let mut delays = None;
    loop {
        let glance = if begun { POLL_INTERVAL.min(timeout) } else { POLL_INTERVAL };
        match words.recv_timeout(glance) {
            Ok(Word::Begun) => begun = true,
            Ok(Word::Done(answer)) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) if hung.get().is_none() => {
                if !begun {
                    continue;
                }
                elapsed += glance;
                let earlier: &RunDelays = delays.get_or_insert_with(RunDelays::now);
                if elapsed >= timeout && counted(elapsed, RunDelays::now().longest_since(earlier)) >= timeout
                {
                    return Err(ExecutorError::Hung(timeout.as_secs_f64()));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(lost()),
        }
    }
}

impl DeviceExecutor {
    fn start(device: Device) -> DeviceExecutor {
        let (concurrency, for_hands) = mpsc::channel();
        let pool = Arc::new(WorkerPool {
            device,
            models: Mutex::default(),
            jobs: Mutex::new(for_hands),
            concurrency: Mutex::new(0),
            hung: OnceLock::new(),
        });
        DeviceExecutor { jobs: pool.start(), concurrency, pool }
    }
}

/// The part of `elapsed` that counts as time to compute, where a thread of this process waited for a CPU for `delay`.
fn counted(elapsed: Duration, delay: Duration) -> Duration {
    elapsed.saturating_sub(delay).max(elapsed / LEAST_COUNTED)
}

impl WorkerPool {
    /// Starts a thread that does one job after the other until nobody can send any.
    fn start(self: &Arc<WorkerPool>) -> Sender<Job> {
        let (sender, jobs) = mpsc::channel();
        let _ = self.spawn(move |pool| {
            while let Ok(job) = jobs.recv() {
                if pool.hung.get().is_some() {
                    return;
                }
                pool.work(job);
            }
        });
        sender
    }

    /// Starts a thread of the executor. Where none can be had the executor is gone from the start, and every job on it says
    /// so.
    fn spawn(self: &Arc<WorkerPool>, body: impl FnOnce(&WorkerPool) + Send + 'static) -> bool {
        let pool = Arc::clone(self);
        thread::Builder::new().name(format!("sconce-{}", self.device)).spawn(move || body(&pool)).is_ok()
    }

    /// Sees to it that there are so many hands, and one more for what can't wait; whether there are any.
    fn grow(self: &Arc<WorkerPool>, wanted: usize) -> bool {
        let hand = |pool: &WorkerPool| {
            loop {
                let job = pool.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                match job {
                    Ok(job) if pool.hung.get().is_none() => pool.work(job),
                    Ok(_) | Err(_) => return,
                }
            }
        };
        let mut concurrency = self.concurrency.lock().unwrap_or_else(PoisonError::into_inner);
        while *concurrency <= wanted && self.spawn(hand) {
            *concurrency += 1;
        }
        *concurrency > 0
    }

    fn models(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Encoder>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, job: Job) {
        match job {
            Job::Load(id, engine, subject, placement, reply) => {
                let _ = reply.send(Word::Begun);
                let load = AssertUnwindSafe(|| engine.load(&subject, &placement));
                let loaded = catch_unwind(load).unwrap_or_else(|panic| {
                    Err(Obstacle::LoadFailed {
                        says: ExecutorError::Panicked(panic_message(&*panic)).to_string(),
                    })
                });
                let answer = loaded.map(|encoder| {
                    let answer = (encoder.cost(), encoder.concurrency());
                    self.models().insert(id, Arc::from(encoder));
                    answer
                });
                // A load that nobody waits for any more is undone.
                if reply.send(Word::Done(answer)).is_err() {
                    self.models().remove(&id);
                }
            }
            Job::Encode(id, batch, reply) => {
                let _ = reply.send(Word::Begun);
                let encoder = self.models().get(&id).cloned();
                let output = match encoder {
                    None => Err(ExecutorError::Gone),
                    Some(encoder) => match catch_unwind(AssertUnwindSafe(|| encoder.encode(&batch))) {
                        Ok(output) => output.map_err(ExecutorError::Engine),
                        Err(panic) => {
                            // What it left behind is not to be trusted.
                            self.models().remove(&id);
                            Err(ExecutorError::Panicked(panic_message(&*panic)))
                        }
                    },
                };
                let _ = reply.send(Word::Done(output));
            }
            Job::Unload(id) => {
                let model = self.models().remove(&id);
                drop(model);
            }
            Job::Settle(reply) => {
                let _ = reply.send(Word::Done(()));
            }
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_cpu_does_not_count_but_for_a_small_part() {
        let seconds = Duration::from_secs;
        assert_eq!(counted(seconds(10), Duration::ZERO), seconds(10));
        assert_eq!(counted(seconds(10), seconds(7)), seconds(3));
        assert_eq!(counted(seconds(10), seconds(10)), Duration::from_millis(200));
        assert_eq!(counted(seconds(10), seconds(30)), Duration::from_millis(200));
    }
}
