//! One thread a device: it owns every model loaded there and runs one batch at a time, so that no driver is ever
//! entered twice. What panics or hangs in model code ends here.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sconce_core::batch::{Batch, Output};
use sconce_core::device::Device;
use sconce_core::engine::{Cost, Encoder, Engine, EngineError, Subject};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

/// The lanes of one runtime, by device.
#[derive(Default)]
pub(crate) struct Lanes {
    lanes: Mutex<HashMap<Device, Sender<Job>>>,
    next: AtomicU64,
}

/// A model loaded on a lane. Dropping it unloads it.
pub(crate) struct Loaded {
    id: u64,
    lane: Sender<Job>,
    pub(crate) cost: Cost,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = self.lane.send(Job::Unload(self.id));
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
    Load(u64, Arc<dyn Engine>, Arc<Subject>, Placement, SyncSender<Result<Cost, Obstacle>>),
    Encode(u64, Arc<Batch>, SyncSender<Result<Output, LaneError>>),
    Unload(u64),
}

impl Lanes {
    fn lane(&self, device: Device) -> Sender<Job> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let start = || {
            let (sender, jobs) = mpsc::channel();
            let thread = thread::Builder::new().name(format!("sconce-{device}"));
            // Where no thread can be had the lane is gone from the start, and every job on it says so.
            let _ = thread.spawn(move || {
                let mut models = HashMap::new();
                while let Ok(job) = jobs.recv() {
                    work(&mut models, job);
                }
            });
            sender
        };
        lanes.entry(device).or_insert_with(start).clone()
    }

    /// Loads a model on its device's lane, waiting at most `patience`.
    pub(crate) fn load(
        &self,
        engine: &Arc<dyn Engine>,
        subject: &Arc<Subject>,
        placement: &Placement,
        patience: Duration,
    ) -> Result<Loaded, Obstacle> {
        let lane = self.lane(placement.device);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply, answer) = mpsc::sync_channel(1);
        let job = Job::Load(id, Arc::clone(engine), Arc::clone(subject), placement.clone(), reply);
        let gone = || Obstacle::LoadFailed { says: LaneError::Gone.to_string() };
        lane.send(job).map_err(|_| gone())?;
        match answer.recv_timeout(patience) {
            Ok(cost) => Ok(Loaded { id, lane, cost: cost? }),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
            Err(RecvTimeoutError::Timeout) => {
                self.abandon(placement.device);
                Err(Obstacle::TimedOut { case: "loading".to_owned(), seconds: patience.as_secs_f64() })
            }
        }
    }

    /// Computes a batch, waiting at most `patience`; a lane that hangs is abandoned with all that it holds.
    pub(crate) fn encode(
        &self,
        loaded: &Loaded,
        device: Device,
        batch: &Arc<Batch>,
        patience: Duration,
    ) -> Result<Output, LaneError> {
        let (reply, answer) = mpsc::sync_channel(1);
        loaded.lane.send(Job::Encode(loaded.id, Arc::clone(batch), reply)).map_err(|_| LaneError::Gone)?;
        match answer.recv_timeout(patience) {
            Ok(output) => output,
            Err(RecvTimeoutError::Disconnected) => Err(LaneError::Gone),
            Err(RecvTimeoutError::Timeout) => {
                self.abandon(device);
                Err(LaneError::Hung(patience.as_secs_f64()))
            }
        }
    }

    fn abandon(&self, device: Device) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
    }
}

fn work(models: &mut HashMap<u64, Box<dyn Encoder>>, job: Job) {
    match job {
        Job::Load(id, engine, subject, placement, reply) => {
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
            if reply.send(cost).is_err() {
                models.remove(&id);
            }
        }
        Job::Encode(id, batch, reply) => {
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
            let _ = reply.send(output);
        }
        Job::Unload(id) => {
            models.remove(&id);
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
