//! A model's place in the server: open or not, who holds it, and how far it is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sconce::hub::Progress;
use sconce::{Event, Model};
use serde::Serialize;
use tokio::sync::watch;

use crate::keeper::When;
use crate::ledger::Bytes;
use crate::queue::Queue;
use crate::worker::short;

/// After this long a model that could not be opened is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// A model's place in the server, whether it is open or not.
pub(crate) struct Slot {
    /// What answers call it.
    pub(crate) name: String,
    /// What else it may be called.
    pub(crate) aliases: Vec<String>,
    /// Whether requests may send token ids.
    pub(crate) token_ids: bool,
    phase: watch::Sender<Phase>,
    state: Mutex<State>,
    /// Whether the server is not ready before it is.
    awaited: AtomicBool,
    /// Whether it could not be opened the last time.
    broken: AtomicBool,
    born: Instant,
    /// When it was last asked, in milliseconds since it was born.
    asked: AtomicU64,
}

#[derive(Default)]
struct State {
    host: Option<Arc<Host>>,
    memory: Option<Memory>,
}

/// What a model was thought to take, what it took, and how long it took to load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) predicted: Bytes,
    pub(crate) measured: Bytes,
    pub(crate) load_seconds: f64,
}

/// A model that is open.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) model: Model,
    /// Whether requests may send token ids.
    pub(crate) token_ids: bool,
    pub(crate) queue: Arc<Queue>,
    /// Since when.
    pub(crate) since: Instant,
    /// How many workers take batches at once, the spare one not counted.
    pub(crate) hands: usize,
    pub(crate) workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Host {
    fn crew(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps hold of a worker.
    pub(crate) fn hire(&self, worker: JoinHandle<()>) {
        self.crew().push(worker);
    }

    /// Waits until its workers have ended.
    pub(crate) fn join(&self) {
        let workers = std::mem::take(&mut *self.crew());
        for worker in workers {
            let _ = worker.join();
        }
    }

    /// Whether anybody but its workers, its slot if `shown` there, and whoever asks here holds it.
    pub(crate) fn is_busy(self: &Arc<Host>, shown: bool) -> bool {
        Arc::strong_count(self) > 1 + self.crew().len() + usize::from(shown)
    }
}

/// How far a model is.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Its files are looked for and read.
    Opening,
    /// A file of it is coming in.
    Fetching { file: String, bytes: u64, of: u64 },
    /// A placement is tried.
    Proving { placement: String, cases: usize, of: usize },
    /// It computes batches of so many texts to see how long they take.
    WarmingUp { texts: usize },
    /// It serves.
    Ready,
    /// It can't be opened.
    Failed {
        why: String,
        #[serde(skip)]
        at: Instant,
    },
    /// Nobody needs it now: the next request has it loaded.
    Asleep,
    /// Somebody asked for it, and others are loaded first.
    Queued,
    /// It waits until others may be unloaded.
    WaitingForRoom,
}

impl Phase {
    /// What an event tells.
    pub(crate) fn of(event: &Event<'_>) -> Phase {
        match event {
            Event::Proving { placement, done, total } => {
                Phase::Proving { placement: short(placement), cases: *done, of: *total }
            }
            Event::Hub(Progress::File { name, done, total }) => {
                Phase::Fetching { file: (*name).to_owned(), bytes: *done, of: *total }
            }
            Event::Hub(_) => Phase::Opening,
        }
    }

    /// The phase in words.
    pub(crate) fn reason(&self) -> String {
        match self {
            Phase::Opening => "its files are being read".to_owned(),
            Phase::Fetching { file, bytes, of } => {
                format!("`{file}` is being fetched: {bytes} of {of} bytes")
            }
            Phase::Proving { placement, cases, of } => {
                format!("{placement} is being proved: {cases} of {of} cases")
            }
            Phase::WarmingUp { texts } => format!("it is warming up, with batches of {texts} texts"),
            Phase::Ready => "it serves".to_owned(),
            // Hints are for operators, who find them in the log.
            Phase::Failed { why, .. } => {
                format!("it can't be opened: {}", why.split("\nhint:").next().unwrap_or(why))
            }
            Phase::Asleep => "it is not loaded, and the next request has it loaded".to_owned(),
            Phase::Queued => "it is loaded as soon as its turn comes".to_owned(),
            Phase::WaitingForRoom => {
                "it waits until others have gone, for the memory that it takes".to_owned()
            }
        }
    }
}

impl Slot {
    pub(crate) fn new(name: String, aliases: Vec<String>, when: When, token_ids: bool) -> Slot {
        let phase = match when {
            When::Start => Phase::Opening,
            When::Demand => Phase::Asleep,
        };
        Slot {
            name,
            aliases,
            token_ids,
            phase: watch::Sender::new(phase),
            state: Mutex::default(),
            awaited: AtomicBool::new(when == When::Start),
            broken: AtomicBool::new(false),
            born: Instant::now(),
            asked: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Every phase from now on.
    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Opens the model to requests.
    pub(crate) fn fill(&self, host: Arc<Host>, predicted: Bytes, measured: Bytes, took: Duration) {
        let memory = Memory { predicted, measured, load_seconds: took.as_secs_f64() };
        *self.lock() = State { host: Some(host), memory: Some(memory) };
        self.broken.store(false, Ordering::Relaxed);
        self.excuse();
        self.touch();
        self.enter(Phase::Ready);
    }

    /// Closes the door and hands out what was behind it.
    pub(crate) fn take(&self) -> Option<Arc<Host>> {
        let host = self.lock().host.take();
        self.enter(Phase::Asleep);
        host
    }

    pub(crate) fn fail(&self, why: String) {
        self.broken.store(true, Ordering::Relaxed);
        self.enter(Phase::Failed { why, at: Instant::now() });
    }

    /// The model, if it is open.
    pub(crate) fn host(&self) -> Option<Arc<Host>> {
        self.lock().host.clone()
    }

    /// The same for somebody who has work for it.
    pub(crate) fn visit(&self) -> Option<Arc<Host>> {
        self.touch();
        self.host()
    }

    fn touch(&self) {
        self.asked.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// When it was last asked.
    pub(crate) fn asked(&self) -> Instant {
        self.born + Duration::from_millis(self.asked.load(Ordering::Relaxed))
    }

    /// What it took when it was last loaded.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.lock().memory
    }

    /// Puts it down as wanted; whether somebody must be told.
    pub(crate) fn want(&self) -> bool {
        self.phase.send_if_modified(|phase| {
            let stale = match phase {
                Phase::Asleep => true,
                Phase::Failed { at, .. } => at.elapsed() > AGAIN,
                Phase::Opening
                | Phase::Fetching { .. }
                | Phase::Proving { .. }
                | Phase::WarmingUp { .. }
                | Phase::Ready
                | Phase::Queued
                | Phase::WaitingForRoom => false,
            };
            if stale {
                *phase = Phase::Queued;
            }
            stale
        })
    }

    /// From now on the server does not wait for it to be ready.
    pub(crate) fn excuse(&self) {
        self.awaited.store(false, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Failed { .. })
    }

    /// Whether it could not be opened the last time, though it may be tried again by now.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether it is on its way up for the first time.
    pub(crate) fn is_starting(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) && !self.has_failed()
    }

    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}
