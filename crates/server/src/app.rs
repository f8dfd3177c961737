//! All that requests share: models by their names, what is counted, threads, and whether it is time to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::keys::Owner;
use crate::metrics::Metrics;
use crate::purse::Purses;
use crate::refusal::{Kind, Refusal};
use crate::seeing::Seeing;
use crate::settings::Settings;
use crate::shares::Shares;
use crate::slot::{Host, Slot};
use crate::threads::Threads;

/// All that requests share.
pub(crate) struct App {
    settings: RwLock<Arc<Settings>>,
    pub(crate) metrics: Metrics,
    pub(crate) threads: Threads,
    pub(crate) slots: Vec<Arc<Slot>>,
    /// Tells the keeper which slot is wanted.
    wanted: Sender<usize>,
    stop: watch::Sender<bool>,
    /// What each key may still use.
    pub(crate) purses: Purses,
    pub(crate) started: Instant,
    pub(crate) seeing: Seeing,
    stopping: AtomicBool,
    bodies: Mutex<Shares>,
}

/// Bytes of bodies that are held.
pub(crate) struct Held {
    app: Arc<App>,
    owner: Owner,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.app.bodies().weigh(self.owner, 0, self.bytes);
    }
}

impl Held {
    pub(crate) fn none(app: &Arc<App>, owner: Owner) -> Held {
        Held { app: Arc::clone(app), owner, bytes: 0 }
    }

    /// Holds so many bytes more, if there is room for them.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let most = self.app.settings().max_bodies;
        let mut bodies = self.app.bodies();
        // One that is alone has room, however long it is.
        if bodies.has_room(self.owner, bytes, most) || bodies.all() == self.bytes {
            bodies.weigh(self.owner, bytes, 0);
            self.bytes += bytes;
            return Ok(());
        }
        Err(Refusal::new(Kind::Overloaded, "the bodies of other requests take all the room there is"))
    }
}

impl App {
    pub(crate) fn new(
        settings: Settings,
        metrics: Metrics,
        threads: Threads,
        slots: Vec<Arc<Slot>>,
        wanted: Sender<usize>,
        stop: watch::Sender<bool>,
    ) -> App {
        let (stopping, bodies) = (AtomicBool::new(false), Mutex::default());
        let seeing = Seeing::new(&settings.sight);
        let (settings, purses) = (RwLock::new(Arc::new(settings)), Purses::default());
        App {
            settings,
            metrics,
            threads,
            slots,
            wanted,
            stop,
            purses,
            seeing,
            started: Instant::now(),
            stopping,
            bodies,
        }
    }

    /// How to behave, as of now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Behaves in another way from now on, but for what is made once: threads and places for connections.
    pub(crate) fn settle(&self, settings: Settings) {
        for host in self.slots.iter().filter_map(|slot| slot.host()) {
            host.queue.limit(settings.queue_seconds);
        }
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    fn bodies(&self) -> MutexGuard<'_, Shares> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the server stop as a signal does.
    pub(crate) fn drain(&self) {
        let _ = self.stop.send(true);
    }

    /// From now on it is not ready.
    pub(crate) fn lie_down(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The place of the model of this name; of the only one where none is named.
    fn place(&self, name: Option<&str>) -> Result<usize, Refusal> {
        let only = if self.slots.len() == 1 { Some(0) } else { None };
        let place = match name {
            None => only,
            Some(name) => self
                .slots
                .iter()
                .position(|slot| slot.is_called(name))
                .or(if self.settings().any_model { only } else { None }),
        };
        place.ok_or_else(|| {
            let there: Vec<String> = self.slots.iter().map(|slot| format!("`{}`", slot.name)).collect();
            let there = there.join(", ");
            let message = match name {
                Some(name) => format!("no model is called `{name}` here; there is: {there}"),
                None => {
                    format!("several models are served: say which in `model` or `x-sconce-model`: {there}")
                }
            };
            Refusal::new(Kind::UnknownModel, message)
        })
    }

    /// Has a model loaded, unless it is, or will be, or could not be a moment ago.
    pub(crate) fn want(&self, place: usize) {
        if self.slots[place].want() {
            let _ = self.wanted.send(place);
        }
    }

    /// The slot of this name.
    pub(crate) fn slot(&self, name: Option<&str>) -> Result<&Arc<Slot>, Refusal> {
        self.place(name).map(|place| &self.slots[place])
    }

    /// The open model of this name, waiting at most so long until it is; one that is not loaded is asked for.
    pub(crate) async fn host(&self, name: Option<&str>, wait: Duration) -> Result<Arc<Host>, Refusal> {
        let place = self.place(name)?;
        let slot = &self.slots[place];
        let mut phases = slot.phases();
        let began = tokio::time::Instant::now();
        loop {
            if let Some(host) = slot.visit() {
                return Ok(host);
            }
            self.want(place);
            let waits = !slot.has_failed() && !self.is_stopping();
            if !waits || tokio::time::timeout_at(began + wait, phases.changed()).await.is_err() {
                let took = slot.memory().map_or(1.0, |memory| memory.load_seconds);
                let message = format!("`{}` is not ready: {}", slot.name, slot.phase().reason());
                return Err(Refusal::new(Kind::NotReady, message).after(took));
            }
        }
    }
}
