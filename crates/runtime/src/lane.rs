//! One thread a device: it owns every model loaded there and runs one batch at a time, so that no driver is ever
//! entered twice. What panics or hangs in model code ends here.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Output};
use sconce_core::device::Device;
use sconce_core::engine::{Cost, Encoder, Engine, EngineError, Subject};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

/// How often whoever waits for a turn looks whether the lane still lives.
const GLANCE: Duration = Duration::from_millis(100);

/// The lanes of one runtime, by device.
#[derive(Default)]
pub(crate) struct Lanes {
    lanes: Mutex<HashMap<Device, Lane>>,
    next: AtomicU64,
}

/// The way to a lane's thread.
#[derive(Clone)]
struct Lane {
    jobs: Sender<Job>,
    /// Seconds after which it was given up.
    hung: Arc<OnceLock<f64>>,
}

/// A model loaded on a lane. Dropping it unloads it.
pub(crate) struct Loaded {
    id: u64,
    lane: Lane,
    pub(crate) cost: Cost,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.lane.jobs.send(Job::Unload(self.id));
    }
}

/// Why a lane gave no rows.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("it panicked: {0}")]
    Panicked(String),
    #[error("it gave no answer in {0:.1} s")]
    Hung(f64),
    #[error("its lane is gone")]
    Gone,
}

enum Job {
    Load(u64, Arc<dyn Engine>, Arc<Subject>, Placement, Reply<Result<Cost, Obstacle>>),
    Encode(u64, Arc<Batch>, Reply<Result<Output, LaneError>>),
    Unload(u64),
    Settle(Reply<()>),
}

/// What a lane says of a job: that its turn has come, then what came of it.
enum Word<T> {
    Begun,
    Done(T),
}

type Reply<T> = SyncSender<Word<T>>;

impl Lanes {
    fn lane(&self, device: Device) -> Lane {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || {
            let (sender, jobs) = mpsc::channel();
            let hung = Arc::new(OnceLock::new());
            let given_up = Arc::clone(&hung);
            let thread = thread::Builder::new().name(format!("sconce-{device}"));
            // Where no thread can be had the lane is gone from the start, and every job on it says so.
            let _ = thread.spawn(move || {
                let mut models = HashMap::new();
                while let Ok(job) = jobs.recv() {
                    if given_up.get().is_some() {
                        return;
                    }
                    work(&mut models, job);
                }
            });
            Lane { jobs: sender, hung }
        };
        lanes.entry(device).or_insert_with(start).clone()
    }

    /// Loads a model on its device's lane, waiting at most `patience` once its turn has come.
    pub(crate) fn load(
        &self,
        engine: &Arc<dyn Engine>,
        subject: &Arc<Subject>,
        placement: &Placement,
        patience: Duration,
    ) -> Result<Loaded, Obstacle> {
        let lane = self.lane(placement.device);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let job = |reply| Job::Load(id, Arc::clone(engine), Arc::clone(subject), placement.clone(), reply);
        match self.run(&lane, placement.device, patience, job) {
            Ok(cost) => Ok(Loaded { id, lane, cost: cost? }),
            Err(LaneError::Hung(seconds)) => Err(Obstacle::TimedOut { case: "loading".to_owned(), seconds }),
            Err(error) => Err(Obstacle::LoadFailed { says: error.to_string() }),
        }
    }

    /// Computes a batch, waiting at most `patience` once its turn has come; a lane that hangs is abandoned with
    /// all that it holds.
    pub(crate) fn encode(
        &self,
        loaded: &Loaded,
        device: Device,
        batch: &Arc<Batch>,
        patience: Duration,
    ) -> Result<Output, LaneError> {
        let job = |reply| Job::Encode(loaded.id, Arc::clone(batch), reply);
        self.run(&loaded.lane, device, patience, job)?
    }

    /// Waits until all that was asked before is done, such as unloading; not for lanes that hang.
    pub(crate) fn settle(&self) {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (device, lane) in lanes {
            let _ = self.run(&lane, device, GLANCE, Job::Settle);
        }
    }

    /// Runs a job: those before it take the time they need, it takes at most `patience`.
    fn run<T>(
        &self,
        lane: &Lane,
        device: Device,
        patience: Duration,
        job: impl FnOnce(Reply<T>) -> Job,
    ) -> Result<T, LaneError> {
        let lost = || lane.hung.get().map_or(LaneError::Gone, |&seconds| LaneError::Hung(seconds));
        let (reply, words) = mpsc::sync_channel(2);
        lane.jobs.send(job(reply)).map_err(|_| lost())?;
        loop {
            match words.recv_timeout(GLANCE) {
                Ok(Word::Begun) => break,
                Ok(Word::Done(answer)) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if lane.hung.get().is_none() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(lost()),
            }
        }
        match words.recv_timeout(patience) {
            Ok(Word::Done(answer)) => Ok(answer),
            Ok(Word::Begun) | Err(RecvTimeoutError::Disconnected) => Err(lost()),
            Err(RecvTimeoutError::Timeout) => {
                self.abandon(lane, device, patience);
                Err(lost())
            }
        }
    }

    /// Lets the next job on `device` start a new lane, unless one has already.
    fn abandon(&self, lane: &Lane, device: Device, patience: Duration) {
        let _ = lane.hung.set(patience.as_secs_f64());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if lanes.get(&device).is_some_and(|current| Arc::ptr_eq(&current.hung, &lane.hung)) {
            lanes.remove(&device);
        }
    }
}

fn work(models: &mut HashMap<u64, Box<dyn Encoder>>, job: Job) {
    match job {
        Job::Load(id, engine, subject, placement, reply) => {
            let _ = reply.send(Word::Begun);
            let load = AssertUnwindSafe(|| engine.load(&subject, &placement));
            let loaded = catch_unwind(load).unwrap_or_else(|panic| {
                Err(Obstacle::LoadFailed { says: LaneError::Panicked(panic_message(&*panic)).to_string() })
            });
            let cost = loaded.map(|encoder| {
                let cost = encoder.cost();
                models.insert(id, encoder);
                cost
            });
            // A load that nobody waits for any more is undone.
            if reply.send(Word::Done(cost)).is_err() {
                models.remove(&id);
            }
        }
        Job::Encode(id, batch, reply) => {
            let _ = reply.send(Word::Begun);
            let output = match models.get_mut(&id) {
                None => Err(LaneError::Gone),
                Some(encoder) => match catch_unwind(AssertUnwindSafe(|| encoder.encode(&batch))) {
                    Ok(output) => output.map_err(LaneError::Engine),
                    Err(panic) => {
                        // What it left behind is not to be trusted.
                        models.remove(&id);
                        Err(LaneError::Panicked(panic_message(&*panic)))
                    }
                },
            };
            let _ = reply.send(Word::Done(output));
        }
        Job::Unload(id) => {
            models.remove(&id);
        }
        Job::Settle(reply) => {
            let _ = reply.send(Word::Done(()));
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
