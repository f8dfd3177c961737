//! The slot of a configured model: its lifecycle phase, the loaded model, and when it was last used.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sconce::hub::Progress;
use sconce::{Event, Model, Task};
use serde::Serialize;
use tokio::sync::watch;

use crate::schedule::generation_quota::GenerationQuota;
use crate::schedule::queue::Queue;
use crate::state::label::short;
use sconce::core::report::{Footprint, ModelMemory};

/// Time after which loading a failed model is retried.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// When a model is loaded for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadPolicy {
    /// At startup, if the memory limit allows it.
    #[default]
    Startup,
    /// On the first request.
    OnDemand,
}

/// The slot of a configured model, loaded or not.
pub(crate) struct Slot {
    /// The name in responses.
    pub(crate) name: String,
    /// Other names that requests may use.
    pub(crate) aliases: Vec<String>,
    /// Whether requests may send token ids.
    pub(crate) token_ids: bool,
    /// Whether a pool manages it: its load evicts no other model, and it is removed once it fails or is evicted.
    pub(crate) managed: bool,
    phase: watch::Sender<Phase>,
    state: Mutex<State>,
    load: LoadPolicy,
    /// Whether the load at startup is pending or in progress.
    startup_pending: AtomicBool,
    /// Whether the last load failed.
    load_failed: AtomicBool,
    created: Instant,
    /// Time of the last request, in milliseconds since `created`.
    last_used: AtomicU64,
}

#[derive(Default)]
struct State {
    loaded: Option<Arc<LoadedModel>>,
    memory: Option<ModelMemory>,
    task: TaskStatus,
    /// Why the last load failed.
    failure: Option<String>,
}

/// The task of a model, as far as its card has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TaskStatus {
    /// The card has not been read yet.
    #[default]
    Pending,
    /// The card is not readable.
    Unavailable,
    /// The task on the card.
    Known(Task),
}

/// A loaded model with its queue and workers.
pub(crate) struct LoadedModel {
    pub(crate) name: String,
    pub(crate) model: Model,
    /// Whether requests may send token ids.
    pub(crate) token_ids: bool,
    pub(crate) queue: Arc<Queue>,
    /// The outputs that are generated or wait.
    pub(crate) generations: Arc<GenerationQuota>,
    /// Tokens and seconds of the warm-up batches, the smallest first.
    pub(crate) warm_up: Vec<(usize, f64)>,
    /// When it was loaded.
    pub(crate) loaded_at: Instant,
    /// Number of workers, without the spare one.
    pub(crate) concurrency: usize,
    pub(crate) workers: Mutex<Vec<JoinHandle<()>>>,
}

impl LoadedModel {
    fn workers_guard(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the thread of a worker, to be joined on unload.
    pub(crate) fn add_worker(&self, worker: JoinHandle<()>) {
        self.workers_guard().push(worker);
    }

    /// Waits until all workers have ended.
    pub(crate) fn join(&self) {
        let workers = std::mem::take(&mut *self.workers_guard());
        for worker in workers {
            let _ = worker.join();
        }
    }

    /// Whether requests are in flight: they hold a reference, beside those of the caller, of each worker and, if `in_slot`,
    /// of the slot.
    pub(crate) fn is_busy(self: &Arc<LoadedModel>, in_slot: bool) -> bool {
        Arc::strong_count(self) > 1 + self.workers_guard().len() + usize::from(in_slot)
    }
}

/// The lifecycle phase of a model, as `/startupz` reports it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Its files are being located and read.
    Loading,
    /// A file is being downloaded.
    Downloading { file: String, bytes: u64, of: u64 },
    /// A file is being hashed for the first time.
    Hashing { file: String, bytes: u64, of: u64 },
    /// A placement is being proved.
    Proving { placement: String, cases: usize, of: usize },
    /// The weights are being read.
    LoadingWeights { placement: String, bytes: u64, of: u64 },
    /// Warm-up batches of this many texts are being timed.
    WarmingUp { texts: usize },
    /// It serves requests.
    Ready,
    /// Loading failed.
    Failed {
        why: String,
        #[serde(skip)]
        at: Instant,
    },
    /// Not loaded: the next request loads it.
    Unloaded,
    /// Waiting for other models to be proved or loaded first.
    Queued,
    /// Waiting until other models can be evicted.
    WaitingForMemory,
}

impl Phase {
    /// The phase that an event of the runtime reports.
    pub(crate) fn of(event: &Event<'_>) -> Phase {
        match event {
            Event::Proving { placement, done, total } => {
                Phase::Proving { placement: short(placement), cases: *done, of: *total }
            }
            Event::Hub(Progress::File { name, done, total }) => {
                Phase::Downloading { file: (*name).to_owned(), bytes: *done, of: *total }
            }
            Event::Hashing { file, done, total } => {
                Phase::Hashing { file: (*file).to_owned(), bytes: *done, of: *total }
            }
            Event::Loading { placement, done, total } => {
                Phase::LoadingWeights { placement: short(placement), bytes: *done, of: *total }
            }
            Event::Hub(_) | Event::Retrying { .. } => Phase::Loading,
        }
    }

    /// Removes the error text, which may contain local paths.
    pub(crate) fn without_details(self) -> Phase {
        if let Phase::Failed { at, .. } = self {
            return Phase::Failed { why: "see the server log".to_owned(), at };
        }
        self
    }

    /// A human-readable description.
    pub(crate) fn reason(&self) -> String {
        match self {
            Phase::Loading => "loading".to_owned(),
            Phase::Downloading { file, bytes, of } => {
                format!("downloading `{file}`: {bytes} of {of} bytes")
            }
            Phase::Hashing { file, bytes, of } => format!("hashing `{file}`: {bytes} of {of} bytes"),
            Phase::Proving { placement, cases, of } => {
                format!("proving {placement}: {cases} of {of} cases")
            }
            Phase::LoadingWeights { placement, bytes, of } => {
                format!("loading {placement}: {bytes} of {of} bytes")
            }
            Phase::WarmingUp { texts } => format!("warming up with batches of {texts} texts"),
            Phase::Ready => "ready".to_owned(),
            // Hints are commands for the operator, who finds them in the log.
            Phase::Failed { why, .. } => {
                format!("loading failed: {}", why.split("\nhint:").next().unwrap_or(why))
            }
            Phase::Unloaded => "unloaded; the next request loads it".to_owned(),
            Phase::Queued => "queued for loading".to_owned(),
            Phase::WaitingForMemory => "waiting for memory: other models must be evicted first".to_owned(),
        }
    }
}

impl Slot {
    pub(crate) fn new(name: String, aliases: Vec<String>, load: LoadPolicy, token_ids: bool) -> Slot {
        let phase = match load {
            LoadPolicy::Startup => Phase::Loading,
            LoadPolicy::OnDemand => Phase::Unloaded,
        };
        Slot {
            name,
            aliases,
            token_ids,
            managed: false,
            phase: watch::Sender::new(phase),
            state: Mutex::default(),
            load,
            startup_pending: AtomicBool::new(load == LoadPolicy::Startup),
            load_failed: AtomicBool::new(false),
            created: Instant::now(),
            last_used: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Subscribes to phase changes.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Publishes a loaded model to requests.
    pub(crate) fn publish(
        &self,
        loaded: Arc<LoadedModel>,
        predicted: Footprint,
        measured: Footprint,
        took: Duration,
    ) {
        let memory = ModelMemory { predicted, measured, load_seconds: took.as_secs_f64() };
        let task = TaskStatus::Known(loaded.model.card().task.value);
        *self.lock() = State { loaded: Some(loaded), memory: Some(memory), task, failure: None };
        self.load_failed.store(false, Ordering::Relaxed);
        self.end_startup();
        self.mark_used();
        self.enter(Phase::Ready);
    }

    /// Withdraws the loaded model: new requests no longer find it.
    pub(crate) fn withdraw(&self) -> Option<Arc<LoadedModel>> {
        let loaded = self.lock().loaded.take();
        self.enter(Phase::Unloaded);
        loaded
    }

    /// Records a failed load. Returns whether the reason is new.
    pub(crate) fn fail(&self, why: String) -> bool {
        self.load_failed.store(true, Ordering::Relaxed);
        let before = self.lock().failure.replace(why.clone());
        let is_new = before.as_ref() != Some(&why);
        self.enter(Phase::Failed { why, at: Instant::now() });
        is_new
    }

    /// The loaded model.
    pub(crate) fn loaded(&self) -> Option<Arc<LoadedModel>> {
        self.lock().loaded.clone()
    }

    /// The loaded model for a request, which counts as use.
    pub(crate) fn acquire(&self) -> Option<Arc<LoadedModel>> {
        self.mark_used();
        self.loaded()
    }

    fn mark_used(&self) {
        self.last_used.store(self.created.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Time of the last request.
    pub(crate) fn last_used(&self) -> Instant {
        self.created + Duration::from_millis(self.last_used.load(Ordering::Relaxed))
    }

    pub(crate) fn task(&self) -> TaskStatus {
        self.lock().task
    }

    pub(crate) fn set_task(&self, task: TaskStatus) {
        self.lock().task = task;
    }

    /// Memory of the last load.
    pub(crate) fn memory(&self) -> Option<ModelMemory> {
        self.lock().memory
    }

    /// Queues it for loading, unless it is loaded, loading, or failed a moment ago. Returns whether the manager must be
    /// notified.
    pub(crate) fn request_load(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let due = match phase {
                Phase::Unloaded => true,
                Phase::Failed { at, .. } => at.elapsed() > RETRY_AFTER,
                Phase::Loading
                | Phase::Downloading { .. }
                | Phase::Hashing { .. }
                | Phase::Proving { .. }
                | Phase::LoadingWeights { .. }
                | Phase::WarmingUp { .. }
                | Phase::Ready
                | Phase::Queued
                | Phase::WaitingForMemory => false,
            };
            if due {
                *phase = Phase::Queued;
            }
            due
        })
    }

    /// Ends the load at startup: readiness no longer waits for it.
    pub(crate) fn end_startup(&self) {
        self.startup_pending.store(false, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Failed { .. })
    }

    /// Whether the last load failed, though a retry may be in progress.
    pub(crate) fn last_load_failed(&self) -> bool {
        self.load_failed.load(Ordering::Relaxed)
    }

    /// Whether the server is not ready because of this model: it is loaded at startup, and its first load is pending or its
    /// last load failed. A model that was evicted, or did not fit at startup, does not block: the next request loads it.
    pub(crate) fn blocks_readiness(&self) -> bool {
        self.load == LoadPolicy::Startup
            && (self.startup_pending.load(Ordering::Relaxed) || self.last_load_failed())
    }

    /// Whether its load at startup is in progress.
    pub(crate) fn is_starting(&self) -> bool {
        self.startup_pending.load(Ordering::Relaxed) && !self.has_failed()
    }

    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(load: LoadPolicy) -> Slot {
        Slot::new("own".to_owned(), vec!["other".to_owned()], load, false)
    }

    fn failed_before(time: Duration) -> Phase {
        Phase::Failed {
            why: "why".to_owned(),
            at: Instant::now().checked_sub(time).expect("the machine is older"),
        }
    }

    #[test]
    fn a_slot_has_a_name_and_aliases() {
        let slot = slot(LoadPolicy::Startup);
        assert!(slot.has_name("own") && slot.has_name("other"));
        assert!(!slot.has_name("ow") && !slot.has_name(""));
    }

    #[test]
    fn only_unloaded_models_and_old_failures_are_queued_for_loading() {
        let slot = slot(LoadPolicy::OnDemand);
        assert!(slot.request_load(), "it is unloaded");
        assert!(matches!(slot.phase(), Phase::Queued));
        assert!(!slot.request_load(), "once is enough");
        for phase in [
            Phase::Loading,
            Phase::WarmingUp { texts: 1 },
            Phase::Ready,
            Phase::WaitingForMemory,
            Phase::Proving { placement: "a".to_owned(), cases: 0, of: 1 },
            Phase::Downloading { file: "a".to_owned(), bytes: 0, of: 1 },
            failed_before(Duration::ZERO),
        ] {
            slot.enter(phase.clone());
            assert!(!slot.request_load(), "{phase:?}");
        }
        slot.enter(failed_before(RETRY_AFTER + Duration::from_secs(1)));
        assert!(slot.request_load());
    }

    #[test]
    fn a_startup_model_blocks_readiness_until_it_is_loaded_and_whenever_it_fails() {
        let start = slot(LoadPolicy::Startup);
        assert!(start.is_starting() && start.blocks_readiness());
        assert!(start.fail("why".to_owned()), "that is news");
        assert!(!start.fail("why".to_owned()) && start.fail("another why".to_owned()));
        assert!(
            !start.is_starting()
                && start.blocks_readiness()
                && start.last_load_failed()
                && start.has_failed()
        );
        start.enter(Phase::Queued);
        assert!(
            start.blocks_readiness() && start.last_load_failed() && !start.has_failed(),
            "a retry is queued"
        );
        let skipped = slot(LoadPolicy::Startup);
        skipped.end_startup();
        assert!(!skipped.is_starting() && !skipped.blocks_readiness(), "it did not fit");
        let demand = slot(LoadPolicy::OnDemand);
        assert!(!demand.is_starting() && !demand.blocks_readiness());
        demand.fail("why".to_owned());
        assert!(demand.last_load_failed() && !demand.blocks_readiness());
    }

    #[test]
    fn the_task_and_the_last_use_are_stored() {
        let slot = slot(LoadPolicy::OnDemand);
        assert_eq!(slot.task(), TaskStatus::Pending);
        slot.set_task(TaskStatus::Known(Task::Rerank));
        assert_eq!(slot.task(), TaskStatus::Known(Task::Rerank));
        assert!(slot.memory().is_none() && slot.loaded().is_none());
        let before = slot.last_used();
        std::thread::sleep(Duration::from_millis(5));
        assert!(slot.loaded().is_none());
        assert_eq!(slot.last_used(), before, "`loaded` does not count as use");
        assert!(slot.acquire().is_none());
        assert!(slot.last_used() >= before + Duration::from_millis(5));
    }

    #[test]
    fn a_reason_reports_progress() {
        for (phase, words) in [
            (Phase::Downloading { file: "f".to_owned(), bytes: 3, of: 9 }, "downloading `f`: 3 of 9 bytes"),
            (Phase::Proving { placement: "p".to_owned(), cases: 2, of: 5 }, "proving p: 2 of 5 cases"),
            (Phase::WarmingUp { texts: 8 }, "warming up with batches of 8 texts"),
            (Phase::Ready, "ready"),
            (
                Phase::Failed { why: "no file\nhint: make one".to_owned(), at: Instant::now() },
                "loading failed: no file",
            ),
        ] {
            assert_eq!(phase.reason(), words);
        }
    }
}
