//! All that requests share: models by their names, what is counted, threads, and whether it is time to stop.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use sconce::Event;
use sconce::Model;
use sconce::hub::Progress;
use serde::Serialize;

use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::refusal::{Kind, Refusal};
use crate::settings::Settings;
use crate::threads::Threads;
use crate::worker::short;

/// All that requests share.
pub(crate) struct App {
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) threads: Threads,
    pub(crate) slots: Vec<Arc<Slot>>,
    pub(crate) started: Instant,
    stopping: AtomicBool,
    bodies: AtomicUsize,
}

/// A model's place in the server, from before it is open.
pub(crate) struct Slot {
    /// What answers call it.
    pub(crate) name: String,
    /// What else it may be called.
    pub(crate) aliases: Vec<String>,
    phase: Mutex<Phase>,
    host: OnceLock<Arc<Host>>,
}

/// A model that is open.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) model: Model,
    pub(crate) queue: Arc<Queue>,
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
    Failed { why: String },
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
            Phase::Failed { why } => format!("it can't be opened: {why}"),
        }
    }
}

impl Slot {
    pub(crate) fn new(name: String, aliases: Vec<String>) -> Slot {
        Slot { name, aliases, phase: Mutex::new(Phase::Opening), host: OnceLock::new() }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// Opens the model to requests.
    pub(crate) fn fill(&self, host: Arc<Host>) {
        let _ = self.host.set(host);
        self.enter(Phase::Ready);
    }

    pub(crate) fn host(&self) -> Option<&Arc<Host>> {
        self.host.get()
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Bytes of bodies that are held.
pub(crate) struct Held {
    app: Arc<App>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.app.bodies.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl Held {
    pub(crate) fn none(app: &Arc<App>) -> Held {
        Held { app: Arc::clone(app), bytes: 0 }
    }

    /// Holds so many bytes more, if there is room for them.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes += bytes;
        let all = self.app.bodies.fetch_add(bytes, Ordering::AcqRel) + bytes;
        if all <= self.app.settings.max_bodies || all == self.bytes {
            return Ok(());
        }
        Err(Refusal::new(Kind::Overloaded, "the bodies of other requests take all the room there is"))
    }
}

impl App {
    pub(crate) fn new(settings: Settings, metrics: Metrics, threads: Threads, slots: Vec<Arc<Slot>>) -> App {
        let (stopping, bodies) = (AtomicBool::new(false), AtomicUsize::new(0));
        App { settings, metrics, threads, slots, started: Instant::now(), stopping, bodies }
    }

    /// From now on it is not ready.
    pub(crate) fn lie_down(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The model of this name; the only one where none is named.
    pub(crate) fn slot(&self, name: Option<&str>) -> Result<&Arc<Slot>, Refusal> {
        let only = if self.slots.len() == 1 { self.slots.first() } else { None };
        let slot = match name {
            None => only,
            Some(name) => self
                .slots
                .iter()
                .find(|slot| slot.is_called(name))
                .or(if self.settings.any_model { only } else { None }),
        };
        slot.ok_or_else(|| {
            let there: Vec<String> = self.slots.iter().map(|slot| format!("`{}`", slot.name)).collect();
            let name = name.unwrap_or_default();
            Refusal::new(
                Kind::UnknownModel,
                format!("no model is called `{name}` here; there is: {}", there.join(", ")),
            )
        })
    }

    /// The open model of this name.
    pub(crate) fn host(&self, name: Option<&str>) -> Result<&Arc<Host>, Refusal> {
        let slot = self.slot(name)?;
        slot.host().ok_or_else(|| {
            Refusal::new(Kind::NotReady, format!("`{}` is not ready: {}", slot.name, slot.phase().reason()))
        })
    }
}
