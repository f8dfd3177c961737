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
use sconce_core::engine::{Cost, Encoder, Engine, EngineError, Subject};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use crate::starvation::RunDelays;

/// How often whoever waits looks whether the lane still lives. Patience is counted in glances and not by the clock: a
/// process that was stopped, or a machine that slept, has not waited meanwhile.
const GLANCE: Duration = Duration::from_millis(100);
/// The least part of the elapsed time that counts, however long threads waited for a CPU: what hangs is found in the end.
const LEAST_COUNTED: u32 = 50;

/// The lanes of one runtime: of each accelerator one. Those of the CPU belong to their models.
#[derive(Default)]
pub(crate) struct Lanes {
    lanes: Mutex<HashMap<Device, Lane>>,
    next: AtomicU64,
}

/// The way to a lane's thread, and to its hands.
#[derive(Clone)]
struct Lane {
    jobs: Sender<Job>,
    hands: Sender<Job>,
    crew: Arc<Crew>,
}

/// What the threads of a lane have in common.
struct Crew {
    device: Device,
    models: Mutex<HashMap<u64, Arc<dyn Encoder>>>,
    /// Where the hands find their jobs.
    jobs: Mutex<Receiver<Job>>,
    /// How many hands there are.
    hands: Mutex<usize>,
    /// Seconds after which the lane was given up.
    hung: OnceLock<f64>,
}

/// A model loaded on a lane. Dropping it unloads it.
pub(crate) struct Loaded {
    id: u64,
    lane: Lane,
    pub(crate) cost: Cost,
    pub(crate) hands: usize,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.lane.crew.device == Device::Cpu {
            let model = self.lane.crew.models().remove(&self.id);
            drop(model);
        } else {
            let _ = self.lane.jobs.send(Job::Unload(self.id));
        }
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
    Load(u64, Arc<dyn Engine>, Arc<Subject>, Placement, Reply<Result<(Cost, usize), Obstacle>>),
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
        if device == Device::Cpu {
            return Lane::start(device);
        }
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.entry(device).or_insert_with(|| Lane::start(device)).clone()
    }

    /// Loads a model on its device's lane, waiting at most `patience` once its turn has come. Where the engine can
    /// load on any thread, batches of other models on the device go on meanwhile.
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
        // On the CPU the lane is the model's own.
        let beside = placement.device != Device::Cpu && engine.loads_on_any_thread();
        let loader = beside.then(|| lane.crew.start());
        match run(&lane, loader.as_ref().unwrap_or(&lane.jobs), patience, job) {
            Ok(answer) => {
                let (cost, hands) = answer?;
                let hands = if hands > 1 && lane.crew.hire(hands) { hands } else { 1 };
                Ok(Loaded { id, lane, cost, hands })
            }
            Err(LaneError::Hung(seconds)) => {
                if !beside {
                    self.abandon(&lane, patience);
                }
                Err(Obstacle::TimedOut { case: "loading".to_owned(), seconds })
            }
            Err(error) => Err(Obstacle::LoadFailed { says: error.to_string() }),
        }
    }

    /// Computes a batch, waiting at most `patience` once its turn has come; a lane that hangs is abandoned with
    /// all that it holds.
    pub(crate) fn encode(
        &self,
        loaded: &Loaded,
        batch: &Arc<Batch>,
        patience: Duration,
    ) -> Result<Output, LaneError> {
        let job = |reply| Job::Encode(loaded.id, Arc::clone(batch), reply);
        let to = if loaded.hands > 1 { &loaded.lane.hands } else { &loaded.lane.jobs };
        let answer = run(&loaded.lane, to, patience, job);
        if let Err(LaneError::Hung(_)) = answer {
            self.abandon(&loaded.lane, patience);
        }
        answer?
    }

    /// Waits until all that was asked before is done, such as unloading; not for lanes that hang.
    pub(crate) fn settle(&self) {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for lane in lanes.values() {
            let _ = run(lane, &lane.jobs, GLANCE, Job::Settle);
        }
    }

    /// Lets the next job on the lane's device start a new lane, unless one has already.
    fn abandon(&self, lane: &Lane, patience: Duration) {
        let _ = lane.crew.hung.set(patience.as_secs_f64());
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let device = lane.crew.device;
        if lanes.get(&device).is_some_and(|current| Arc::ptr_eq(&current.crew, &lane.crew)) {
            lanes.remove(&device);
        }
        drop(lanes);
        // Those of a driver stay: nobody else may enter it.
        if device == Device::Cpu {
            let models = std::mem::take(&mut *lane.crew.models());
            drop(models);
        }
    }
}

/// Runs a job: those before it take the time they need, it takes at most `patience`, not counting the time that
/// threads of this process waited for a CPU.
fn run<T>(
    lane: &Lane,
    to: &Sender<Job>,
    patience: Duration,
    job: impl FnOnce(Reply<T>) -> Job,
) -> Result<T, LaneError> {
    let hung = &lane.crew.hung;
    let lost = || hung.get().map_or(LaneError::Gone, |&seconds| LaneError::Hung(seconds));
    let (reply, words) = mpsc::sync_channel(2);
    to.send(job(reply)).map_err(|_| lost())?;
    let mut begun = false;
    let mut elapsed = Duration::ZERO;
    let mut delays = None;
    loop {
        let glance = if begun { GLANCE.min(patience) } else { GLANCE };
        match words.recv_timeout(glance) {
            Ok(Word::Begun) => begun = true,
            Ok(Word::Done(answer)) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) if hung.get().is_none() => {
                if !begun {
                    continue;
                }
                elapsed += glance;
                let earlier: &RunDelays = delays.get_or_insert_with(RunDelays::now);
                if elapsed >= patience
                    && counted(elapsed, RunDelays::now().longest_since(earlier)) >= patience
                {
                    return Err(LaneError::Hung(patience.as_secs_f64()));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(lost()),
        }
    }
}

impl Lane {
    fn start(device: Device) -> Lane {
        let (hands, for_hands) = mpsc::channel();
        let crew = Arc::new(Crew {
            device,
            models: Mutex::default(),
            jobs: Mutex::new(for_hands),
            hands: Mutex::new(0),
            hung: OnceLock::new(),
        });
        Lane { jobs: crew.start(), hands, crew }
    }
}

/// The part of `elapsed` that counts as time to compute, where a thread of this process waited for a CPU for `delay`.
fn counted(elapsed: Duration, delay: Duration) -> Duration {
    elapsed.saturating_sub(delay).max(elapsed / LEAST_COUNTED)
}

impl Crew {
    /// Starts a thread that does one job after the other until nobody can send any.
    fn start(self: &Arc<Crew>) -> Sender<Job> {
        let (sender, jobs) = mpsc::channel();
        let _ = self.spawn(move |crew| {
            while let Ok(job) = jobs.recv() {
                if crew.hung.get().is_some() {
                    return;
                }
                crew.work(job);
            }
        });
        sender
    }

    /// Starts a thread of the lane. Where none can be had the lane is gone from the start, and every job on it says
    /// so.
    fn spawn(self: &Arc<Crew>, body: impl FnOnce(&Crew) + Send + 'static) -> bool {
        let crew = Arc::clone(self);
        thread::Builder::new().name(format!("sconce-{}", self.device)).spawn(move || body(&crew)).is_ok()
    }

    /// Sees to it that there are so many hands, and one more for what can't wait; whether there are any.
    fn hire(self: &Arc<Crew>, wanted: usize) -> bool {
        let hand = |crew: &Crew| {
            loop {
                let job = crew.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                match job {
                    Ok(job) if crew.hung.get().is_none() => crew.work(job),
                    Ok(_) | Err(_) => return,
                }
            }
        };
        let mut hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner);
        while *hands <= wanted && self.spawn(hand) {
            *hands += 1;
        }
        *hands > 0
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
                        says: LaneError::Panicked(panic_message(&*panic)).to_string(),
                    })
                });
                let answer = loaded.map(|encoder| {
                    let answer = (encoder.cost(), encoder.hands());
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
                    None => Err(LaneError::Gone),
                    Some(encoder) => match catch_unwind(AssertUnwindSafe(|| encoder.encode(&batch))) {
                        Ok(output) => output.map_err(LaneError::Engine),
                        Err(panic) => {
                            // What it left behind is not to be trusted.
                            self.models().remove(&id);
                            Err(LaneError::Panicked(panic_message(&*panic)))
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
