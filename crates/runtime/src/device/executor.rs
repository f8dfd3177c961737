//! Device executors: the threads that run model code, and contain its panics and hangs.
//!
//! An accelerator has one device thread, which loads, unloads and runs one batch at a time: drivers are not entered
//! concurrently. On the CPU each model has its own threads: a hanging or loading model does not block others. Models with
//! concurrency above 1 also have a worker pool, with one batch per worker.

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
use sconce_core::engine::{BatchLayout, Encoder, Engine, EngineError, ModelSpec};
use sconce_core::generator::Generator;
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use super::run_delay::RunDelays;

/// Poll interval of a waiting caller. Timeouts count polls, not wall time: a stopped process or a suspended machine has
/// not waited.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// At least 1/50 of the elapsed time counts, despite run-queue delay: a hang is always detected.
const MIN_COUNTED_FRACTION: u32 = 50;

/// Executors of one runtime: one per accelerator. CPU executors belong to their models.
#[derive(Default)]
pub(crate) struct DeviceExecutors {
    executors: Mutex<HashMap<Device, DeviceExecutor>>,
    next_id: AtomicU64,
}

/// Handle of a device executor.
#[derive(Clone)]
struct DeviceExecutor {
    /// Queue of the device thread.
    device_jobs: Sender<Job>,
    /// Queue of the workers.
    worker_jobs: Sender<Job>,
    pool: Arc<WorkerPool>,
}

/// State shared by the threads of an executor.
struct WorkerPool {
    device: Device,
    models: Mutex<HashMap<u64, Arc<dyn Encoder>>>,
    /// Queue of the workers.
    worker_jobs: Mutex<Receiver<Job>>,
    /// Number of workers.
    workers: Mutex<usize>,
    /// Timeout in seconds after which the executor was abandoned.
    hung: OnceLock<f64>,
}

/// A loaded model. Dropping it unloads the model.
pub(crate) struct Loaded {
    id: u64,
    executor: DeviceExecutor,
    pub(crate) cost: BatchLayout,
    pub(crate) concurrency: usize,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.executor.pool.device == Device::Cpu {
            let model = self.executor.pool.models().remove(&self.id);
            drop(model);
        } else {
            let _ = self.executor.device_jobs.send(Job::Unload(self.id));
        }
    }
}

/// Error of a job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecutorError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("it panicked: {0}")]
    Panicked(String),
    #[error("it gave no answer in {0:.1} s")]
    Hung(f64),
    #[error("its executor has exited")]
    Gone,
}

enum Job {
    Load(u64, Arc<dyn Engine>, Arc<ModelSpec>, Placement, LoadReply),
    /// Work on a loaded model.
    Call(Box<dyn FnOnce(&WorkerPool) + Send>),
    Unload(u64),
    Drain(Reply<()>),
}

/// Progress of a job.
enum JobStatus<T> {
    Started,
    /// Bytes of the weights that have been read, and their size.
    Loading(u64, u64),
    Done(T),
}

type Reply<T> = SyncSender<JobStatus<T>>;
type LoadReply = Reply<Result<(BatchLayout, usize), Obstacle>>;

impl DeviceExecutors {
    fn executor(&self, device: Device) -> DeviceExecutor {
        if device == Device::Cpu {
            return DeviceExecutor::start(device);
        }
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        executors.entry(device).or_insert_with(|| DeviceExecutor::start(device)).clone()
    }

    /// Loads a model on its device, within `timeout` after the job starts. If the engine can load on any thread, batches
    /// of other models on the device continue. `progress` receives the bytes of the weights that have been read, and their
    /// size.
    pub(crate) fn load(
        &self,
        engine: &Arc<dyn Engine>,
        spec: &Arc<ModelSpec>,
        placement: &Placement,
        timeout: Duration,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Loaded, Obstacle> {
        let executor = self.executor(placement.device);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let job = |reply| Job::Load(id, Arc::clone(engine), Arc::clone(spec), placement.clone(), reply);
        // On the CPU the executor belongs to the model.
        let on_own_thread = placement.device != Device::Cpu && engine.loads_on_any_thread();
        let loader = on_own_thread.then(|| executor.pool.start_thread());
        let queue = loader.as_ref().unwrap_or(&executor.device_jobs);
        match run(&executor, queue, timeout, job, progress, || true) {
            Ok(answer) => {
                let (cost, concurrency) = answer?;
                let concurrency =
                    if concurrency > 1 && executor.pool.spawn_workers(concurrency) { concurrency } else { 1 };
                Ok(Loaded { id, executor, cost, concurrency })
            }
            Err(ExecutorError::Hung(seconds)) => {
                if !on_own_thread {
                    self.abandon(&executor, timeout);
                }
                Err(Obstacle::TimedOut { case: "loading".to_owned(), seconds })
            }
            Err(error) => Err(Obstacle::LoadFailed { reason: error.to_string() }),
        }
    }

    /// Computes a batch within `timeout` after the job starts.
    pub(crate) fn encode(
        &self,
        loaded: &Loaded,
        batch: &Arc<Batch>,
        timeout: Duration,
    ) -> Result<Output, ExecutorError> {
        self.encode_then(loaded, batch, timeout, |output| output, || true)
    }

    /// Computes a batch within `timeout` after the job starts, and applies `then` to its output on the executor's thread.
    /// A hung executor is abandoned with all its models, unless `abandon` returns false: `then` took effect, and is
    /// awaited.
    pub(crate) fn encode_then<T: Send + 'static>(
        &self,
        loaded: &Loaded,
        batch: &Arc<Batch>,
        timeout: Duration,
        then: impl FnOnce(Output) -> T + Send + 'static,
        abandon: impl Fn() -> bool,
    ) -> Result<T, ExecutorError> {
        let batch = Arc::clone(batch);
        let work = move |encoder: &dyn Encoder| encoder.encode(&batch).map(then);
        let queue =
            if loaded.concurrency > 1 { &loaded.executor.worker_jobs } else { &loaded.executor.device_jobs };
        self.call(loaded, queue, timeout, work, abandon)
    }

    /// Runs `work` with the generator of a model, on the device thread, within `timeout` after it starts.
    pub(crate) fn generate<T: Send + 'static>(
        &self,
        loaded: &Loaded,
        timeout: Duration,
        work: impl FnOnce(&dyn Generator) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, ExecutorError> {
        let work = move |encoder: &dyn Encoder| match encoder.generator() {
            Some(generator) => work(generator),
            None => Err(EngineError::Malformed("the engine does not generate text".to_owned())),
        };
        self.call(loaded, &loaded.executor.device_jobs, timeout, work, || true)
    }

    fn call<T: Send + 'static>(
        &self,
        loaded: &Loaded,
        queue: &Sender<Job>,
        timeout: Duration,
        work: impl FnOnce(&dyn Encoder) -> Result<T, EngineError> + Send + 'static,
        abandon: impl Fn() -> bool,
    ) -> Result<T, ExecutorError> {
        let id = loaded.id;
        let job = |reply: Reply<Result<T, ExecutorError>>| {
            Job::Call(Box::new(move |pool| {
                let _ = reply.send(JobStatus::Started);
                let _ = reply.send(JobStatus::Done(pool.call(id, work)));
            }))
        };
        let answer = run(&loaded.executor, queue, timeout, job, &mut |_, _| {}, abandon);
        if let Err(ExecutorError::Hung(_)) = answer {
            self.abandon(&loaded.executor, timeout);
        }
        answer?
    }

    /// Waits for all earlier jobs, such as unloads. Hung executors are skipped.
    pub(crate) fn drain(&self) {
        let executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for executor in executors.values() {
            let _ = run(executor, &executor.device_jobs, POLL_INTERVAL, Job::Drain, &mut |_, _| {}, || true);
        }
    }

    /// Marks the executor as hung. The next job on the device starts a new one.
    fn abandon(&self, executor: &DeviceExecutor, timeout: Duration) {
        let _ = executor.pool.hung.set(timeout.as_secs_f64());
        let mut executors = self.executors.lock().unwrap_or_else(PoisonError::into_inner);
        let device = executor.pool.device;
        if executors.get(&device).is_some_and(|current| Arc::ptr_eq(&current.pool, &executor.pool)) {
            executors.remove(&device);
        }
        drop(executors);
        // Models of an accelerator stay: no other thread may enter the driver.
        if device == Device::Cpu {
            let models = std::mem::take(&mut *executor.pool.models());
            drop(models);
        }
    }
}

/// Queues a job and waits for it, within `timeout` after it starts, and longer if `abandon` returns false then. Run-queue
/// delay does not count.
fn run<T>(
    executor: &DeviceExecutor,
    queue: &Sender<Job>,
    timeout: Duration,
    job: impl FnOnce(Reply<T>) -> Job,
    progress: &mut dyn FnMut(u64, u64),
    abandon: impl Fn() -> bool,
) -> Result<T, ExecutorError> {
    let hung = &executor.pool.hung;
    let lost = || hung.get().map_or(ExecutorError::Gone, |&seconds| ExecutorError::Hung(seconds));
    let (reply, statuses) = mpsc::sync_channel(2);
    queue.send(job(reply)).map_err(|_| lost())?;
    let mut started = false;
    let mut elapsed = Duration::ZERO;
    let mut delays = None;
    loop {
        let interval = if started { POLL_INTERVAL.min(timeout) } else { POLL_INTERVAL };
        match statuses.recv_timeout(interval) {
            Ok(JobStatus::Started) => started = true,
            Ok(JobStatus::Loading(done, total)) => progress(done, total),
            Ok(JobStatus::Done(answer)) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) if hung.get().is_none() => {
                if !started {
                    continue;
                }
                elapsed += interval;
                let earlier: &RunDelays = delays.get_or_insert_with(RunDelays::now);
                if elapsed >= timeout
                    && counted(elapsed, RunDelays::now().longest_since(earlier)) >= timeout
                    && abandon()
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
        let (worker_jobs, receiver) = mpsc::channel();
        let pool = Arc::new(WorkerPool {
            device,
            models: Mutex::default(),
            worker_jobs: Mutex::new(receiver),
            workers: Mutex::new(0),
            hung: OnceLock::new(),
        });
        DeviceExecutor { device_jobs: pool.start_thread(), worker_jobs, pool }
    }
}

/// Compute time: `elapsed` without the run-queue `delay`.
fn counted(elapsed: Duration, delay: Duration) -> Duration {
    elapsed.saturating_sub(delay).max(elapsed / MIN_COUNTED_FRACTION)
}

impl WorkerPool {
    /// Starts a thread that runs jobs until its queue is closed.
    fn start_thread(self: &Arc<WorkerPool>) -> Sender<Job> {
        let (sender, jobs) = mpsc::channel();
        let _ = self.spawn(move |pool| {
            while let Ok(job) = jobs.recv() {
                if pool.hung.get().is_some() {
                    return;
                }
                pool.run(job);
            }
        });
        sender
    }

    /// Starts a thread. Returns false if the system has none: jobs then fail with [`ExecutorError::Gone`].
    fn spawn(self: &Arc<WorkerPool>, body: impl FnOnce(&WorkerPool) + Send + 'static) -> bool {
        let pool = Arc::clone(self);
        thread::Builder::new().name(format!("sconce-{}", self.device)).spawn(move || body(&pool)).is_ok()
    }

    /// Grows the pool to `wanted` workers, and one more for interactive batches. Returns whether there are any.
    fn spawn_workers(self: &Arc<WorkerPool>, wanted: usize) -> bool {
        let worker = |pool: &WorkerPool| {
            loop {
                let job = pool.worker_jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                match job {
                    Ok(job) if pool.hung.get().is_none() => pool.run(job),
                    Ok(_) | Err(_) => return,
                }
            }
        };
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        while *workers <= wanted && self.spawn(worker) {
            *workers += 1;
        }
        *workers > 0
    }

    fn models(&self) -> MutexGuard<'_, HashMap<u64, Arc<dyn Encoder>>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<T>(
        &self,
        id: u64,
        work: impl FnOnce(&dyn Encoder) -> Result<T, EngineError>,
    ) -> Result<T, ExecutorError> {
        let encoder = self.models().get(&id).cloned().ok_or(ExecutorError::Gone)?;
        match catch_unwind(AssertUnwindSafe(|| work(&*encoder))) {
            Ok(output) => output.map_err(ExecutorError::Engine),
            Err(panic) => {
                // Its state is undefined after a panic.
                self.models().remove(&id);
                Err(ExecutorError::Panicked(panic_message(&*panic)))
            }
        }
    }

    fn run(&self, job: Job) {
        match job {
            Job::Load(id, engine, spec, placement, reply) => {
                let _ = reply.send(JobStatus::Started);
                // A report is dropped while earlier ones wait.
                let progress = |done, total| drop(reply.try_send(JobStatus::Loading(done, total)));
                let load = AssertUnwindSafe(|| engine.load_with_progress(&spec, &placement, &progress));
                let loaded = catch_unwind(load).unwrap_or_else(|panic| {
                    Err(Obstacle::LoadFailed {
                        reason: ExecutorError::Panicked(panic_message(&*panic)).to_string(),
                    })
                });
                let answer = loaded.map(|encoder| {
                    let answer = (encoder.batch_layout(), encoder.concurrency());
                    self.models().insert(id, Arc::from(encoder));
                    answer
                });
                // Undo a load whose caller timed out.
                if reply.send(JobStatus::Done(answer)).is_err() {
                    self.models().remove(&id);
                }
            }
            Job::Call(work) => work(self),
            Job::Unload(id) => {
                let model = self.models().remove(&id);
                drop(model);
            }
            Job::Drain(reply) => {
                let _ = reply.send(JobStatus::Done(()));
            }
        }
    }
}

/// The message of a panic.
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
