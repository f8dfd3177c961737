//! The thread that loads models when they are wanted, within the memory there is, and unloads them when they are not.
//! Models are prepared on threads of their own, so that a download or a proof holds no other model up.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sconce::core::obstacle::bytes;
use sconce::{Claim, Error, Event, ModelBuilder, Runtime, peak, resident};
use serde_json::json;

use crate::models::eviction::{Admission, LoadedModel, admit, too_much};
use crate::models::incidents;
use crate::models::memory_estimator::{Load, MemoryEstimator};
use crate::models::startup::{open, spawn};
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{Ability, Phase, Slot};
use sconce::core::report::Footprint;

/// How often it looks around.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often it looks for what is about to come: the end of work on a model that is to go, a model before another.
const MOMENT: Duration = Duration::from_millis(1);

/// How long a model of the start waits at most for those before it.
const TURN: Duration = Duration::from_secs(2);

/// What the manager is told.
pub(crate) enum Order {
    /// A request wants this model.
    Load(usize),
    /// This model is fetched and proved, or could not be.
    Prepared(usize, Prepared),
    /// This model is to be proved by children that take so many bytes; whether it may is sent back.
    Prove { at: usize, bytes: u64, makes_room: bool, reply: Sender<Result<bool, Error>> },
}

/// A model before it is loaded.
pub(crate) struct Prepared {
    /// Whether others may be unloaded for it.
    makes_room: bool,
    began: Instant,
    claim: Result<Claim, Error>,
    /// Footprint that a child will take that proves the real weights before they are loaded.
    proving: u64,
}

/// A model as it can be opened again and again.
#[derive(Clone)]
pub(crate) struct ManagedModel {
    builder: ModelBuilder,
    pub(crate) runtime: Runtime,
}

impl ManagedModel {
    pub(crate) fn new(mut builder: ModelBuilder) -> ManagedModel {
        let runtime = builder.get_or_create_runtime();
        ManagedModel { builder, runtime }
    }
}

/// Loads and unloads.
pub(crate) struct ModelManager {
    app: Arc<App>,
    models: Vec<ManagedModel>,
    estimator: MemoryEstimator,
    /// For those that prepare models.
    orders: Sender<Order>,
    /// Held while a model is proved: two at once would measure each other's speed.
    proving: Arc<Mutex<()>>,
    /// Models that are to be loaded, in the order in which they were prepared.
    prepared: Vec<(usize, Prepared)>,
    /// What the process takes without any model.
    empty: u64,
    /// Whether any model ever served.
    served: bool,
    /// Why the first model that failed could not be opened.
    failure: Option<Error>,
}

impl ModelManager {
    pub(crate) fn new(app: Arc<App>, models: Vec<ManagedModel>, orders: Sender<Order>) -> ModelManager {
        let path = models.first().map(|kept| kept.runtime.evidence().0.join("memory.estimator"));
        let estimator = path.map_or_else(MemoryEstimator::default, |path| MemoryEstimator::open(&path));
        for slot in &app.slots {
            app.metrics.listed(&slot.name);
        }
        let empty = resident().unwrap_or(0);
        let (proving, prepared) = (Arc::default(), Vec::new());
        ModelManager {
            app,
            models,
            estimator,
            orders,
            proving,
            prepared,
            empty,
            served: false,
            failure: None,
        }
    }

    /// Works until the server stops. Where no model at all can be opened it ends with the reason of the first.
    pub(crate) fn keep(mut self, orders: &Receiver<Order>) -> Result<(), Error> {
        for at in 0..self.app.slots.len() {
            // Those that are loaded at the start do not make others go that were, too.
            if self.app.slots[at].is_starting() {
                self.prepare(at, false);
            } else {
                self.read_card(at);
            }
        }
        while !self.app.is_shutting_down() {
            let wait = if self.prepared.is_empty() { POLL_INTERVAL } else { MOMENT };
            let order = match orders.recv_timeout(wait) {
                Ok(order) => Some(order),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let is_idle = order.is_none();
            for order in order.into_iter().chain(orders.try_iter()) {
                match order {
                    Order::Load(at) => self.prepare(at, true),
                    Order::Prepared(at, prepared) => self.prepared.push((at, prepared)),
                    Order::Prove { at, bytes, makes_room, reply } => {
                        let room = self.make_room(at, bytes, makes_room);
                        if matches!(room, Ok(true)) {
                            self.app.reserved.store(bytes, Ordering::Relaxed);
                        }
                        let _ = reply.send(room);
                    }
                }
            }
            match self.next() {
                Some((at, prepared)) => self.attend(at, prepared)?,
                None if is_idle => self.sweep(),
                None => {}
            }
        }
        Ok(())
    }

    /// Fetches and proves a model on a thread of its own.
    fn prepare(&self, at: usize, makes_room: bool) {
        let (app, kept, orders) = (Arc::clone(&self.app), self.models[at].clone(), self.orders.clone());
        let proving = Arc::clone(&self.proving);
        let began = Instant::now();
        let prepare = move || {
            let slot = &app.slots[at];
            slot.enter(Phase::Opening);
            if slot.ability() == Ability::Unread {
                learn(slot, &kept);
            }
            let needed = prover_claim(&app, slot, &kept);
            let bytes = *needed.as_ref().unwrap_or(&0);
            let mut turn = None;
            let mut room = needed.map(|_| true);
            if bytes > 0 {
                slot.enter(Phase::Queued);
                turn = Some(proving.lock().unwrap_or_else(PoisonError::into_inner));
                room = room_for(&orders, at, bytes, makes_room);
            }
            if matches!(room, Ok(false)) {
                slot.excuse();
                slot.enter(Phase::Asleep);
                return;
            }
            let claim = room.and_then(|_| {
                kept.builder.claim(&mut |event| {
                    if turn.is_none() && matches!(event, Event::Proving { .. }) {
                        slot.enter(Phase::Queued);
                        turn = Some(proving.lock().unwrap_or_else(PoisonError::into_inner));
                    }
                    incidents::hear(&app, slot, &event);
                })
            });
            if bytes > 0 {
                app.reserved.store(0, Ordering::Relaxed);
            }
            drop(turn);
            if claim.is_ok() {
                slot.enter(Phase::Queued);
            }
            let prepared = Prepared { makes_room, began, claim, proving: bytes };
            let _ = orders.send(Order::Prepared(at, prepared));
        };
        if let Err(error) = spawn("sconce-prepare", prepare) {
            let prepared = Prepared { makes_room, began, claim: Err(error), proving: 0 };
            let _ = self.orders.send(Order::Prepared(at, prepared));
        }
    }

    /// Reads what a model can do before anybody asks for it.
    fn read_card(&self, at: usize) {
        let (app, kept) = (Arc::clone(&self.app), self.models[at].clone());
        if spawn("sconce-card", move || learn(&app.slots[at], &kept)).is_err() {
            self.app.slots[at].learn(Ability::Unreadable);
        }
    }

    /// The next model to load: the first of the start, then who was wanted first. One of the start waits for those
    /// before it that are neither fetched nor proved but only read, so that which models fit into the memory depends
    /// on their order and not on chance.
    fn next(&mut self) -> Option<(usize, Prepared)> {
        let turn = |(place, (at, prepared)): &(usize, &(usize, Prepared))| {
            (prepared.makes_room, if prepared.makes_room { *place } else { *at })
        };
        let (place, (at, prepared)) = self.prepared.iter().enumerate().min_by_key(turn)?;
        let is_read = |slot: &Arc<Slot>| slot.is_starting() && matches!(slot.phase(), Phase::Opening);
        let waits = !prepared.makes_room && prepared.began.elapsed() < TURN;
        if waits && self.app.slots[..*at].iter().any(is_read) {
            return None;
        }
        Some(self.prepared.remove(place))
    }

    /// Loads a model that is prepared; where no model at all can be opened, the reason of the first.
    fn attend(&mut self, at: usize, prepared: Prepared) -> Result<(), Error> {
        if let Err(error) = self.load(at, prepared) {
            let (slot, why) = (&self.app.slots[at], error.to_string());
            let told = [("model", json!(slot.name)), ("why", json!(why))];
            // Probes have it tried again and again.
            if slot.fail(why) {
                self.app.edge.telemetry.warn("model can't be opened", &told);
            }
            self.failure.get_or_insert(error);
        }
        let all_failed = self.app.slots.iter().all(|slot| slot.is_broken());
        match self.failure.take_if(|_| all_failed && !self.served) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn limit(&self) -> Option<u64> {
        self.app.settings().memory_limit
    }

    /// The models that are loaded.
    fn loaded(&self) -> Vec<LoadedModel> {
        let model = |(slot, place): (usize, &Arc<Slot>)| {
            place.host().map(|host| LoadedModel { slot, since: host.since, asked: place.asked() })
        };
        self.app.slots.iter().enumerate().filter_map(model).collect()
    }

    /// Loads a model; where it may not make room and there is none, it is left for when it is asked.
    fn load(&mut self, at: usize, prepared: Prepared) -> Result<(), Error> {
        let Prepared { makes_room, began, claim, proving } = prepared;
        let app = Arc::clone(&self.app);
        let slot = &app.slots[at];
        if slot.host().is_some() {
            return Ok(());
        }
        let claim = claim?;
        let guess = self.estimator.guess(&load(&claim));
        // A child that proves the weights is gone before they are loaded.
        if !self.make_room(at, guess.peak.max(proving), makes_room)? {
            slot.excuse();
            slot.enter(Phase::Asleep);
            return Ok(());
        }
        let kept = &self.models[at];
        kept.runtime.release_free_memory();
        let before = resident().unwrap_or(0);
        let _ = peak();
        let host = open(&app, slot, kept.builder.clone())?;
        kept.runtime.release_free_memory();
        let after = resident().unwrap_or(0);
        let grown = |bytes: u64| bytes.saturating_sub(before);
        let truth = Footprint { resident: grown(after), peak: grown(peak().unwrap_or(after).max(after)) };
        self.estimator.note(load(&host.model.claim().unwrap_or(claim)), guess, truth);
        app.metrics.loaded(&slot.name, guess, truth);
        slot.fill(host, guess, truth, began.elapsed());
        self.served = true;
        self.keep_within(at)
    }

    /// Unloads others until `need` bytes more have room; whether they have.
    fn make_room(&mut self, at: usize, need: u64, makes_room: bool) -> Result<bool, Error> {
        loop {
            let (limit, now) = (self.app.settings().models_limit(), Instant::now());
            let (resident, provers) = (resident().unwrap_or(0), self.app.proving());
            match admit(limit, resident, provers, self.empty, need, &self.loaded(), now) {
                Admission::Load => return Ok(true),
                Admission::Evict(_) | Admission::Wait(_) if !makes_room => return Ok(false),
                Admission::Evict(other) => self.unload(other, "room"),
                Admission::Wait(_) if self.app.is_shutting_down() => {
                    return Err(Error::Machine("the server is stopping".to_owned()));
                }
                Admission::Wait(time) => {
                    self.app.slots[at].enter(Phase::WaitingForRoom);
                    thread::sleep(time.min(POLL_INTERVAL));
                }
                Admission::Never => return Err(self.does_not_fit(need)),
            }
        }
    }

    fn does_not_fit(&self, need: u64) -> Error {
        Error::Machine(format!(
            "it takes about {}, the server without models {}, and the limit for models is {}\n\
             hint: raise `memory_limit`, or name a narrower `dtype`",
            bytes(need),
            bytes(self.empty),
            bytes(self.app.settings().models_limit().unwrap_or(0))
        ))
    }

    /// The check after loading: where more is in use than may be, others go, and if nobody else is left, it goes.
    fn keep_within(&mut self, at: usize) -> Result<(), Error> {
        while let Some(other) = too_much(self.limit(), self.app.used(), &self.loaded()) {
            self.unload(other, "limit");
            if other == at {
                break;
            }
        }
        let now = resident().unwrap_or(0);
        if self.limit().is_some_and(|limit| now > limit) && self.app.slots[at].host().is_some() {
            self.unload(at, "limit");
            return Err(self.does_not_fit(now.saturating_sub(self.empty)));
        }
        Ok(())
    }

    /// Unloads who has been idle for long, and somebody where too much is in use.
    fn sweep(&mut self) {
        let (idle, now) = (self.app.settings().idle_unload, Instant::now());
        for model in self.loaded() {
            let rests = idle.is_some_and(|idle| now.saturating_duration_since(model.asked) > idle);
            if rests && self.app.slots[model.slot].host().is_some_and(|host| !host.is_busy(true)) {
                self.unload(model.slot, "idle");
            }
        }
        // Elsewhere than on Linux it takes a process to ask how much is in use.
        let over = self.limit().and_then(|limit| too_much(Some(limit), self.app.used(), &self.loaded()));
        if let Some(slot) = over {
            self.unload(slot, "limit");
        }
    }

    /// Closes the door, waits for those inside, and gives the memory back.
    fn unload(&mut self, at: usize, why: &str) {
        let slot = &self.app.slots[at];
        let Some(host) = slot.take() else { return };
        self.app.metrics.unloaded(&slot.name, why);
        self.app.edge.telemetry.info("model unloaded", &[("model", json!(slot.name)), ("why", json!(why))]);
        let began = Instant::now();
        while host.is_busy(false) && began.elapsed() < self.app.settings().http.time_limit {
            thread::sleep(MOMENT);
        }
        host.queue.close();
        host.join();
        drop(host);
        self.models[at].runtime.release_free_memory();
    }
}

/// Footprint that prover children will take for a model, where there is a limit to hold. One that was loaded before is
/// proved, and to find that out again would open its tokenizer beside what is being measured.
fn prover_claim(app: &App, slot: &Slot, kept: &ManagedModel) -> Result<u64, Error> {
    if slot.memory().is_some() {
        return Ok(0);
    }
    let claim = |_| kept.builder.prover_claim(&mut |event| incidents::hear(app, slot, &event));
    app.settings().memory_limit.map_or(Ok(0), claim)
}

/// ModelChoice the manager for room for a prover; whether there is.
fn room_for(orders: &Sender<Order>, at: usize, bytes: u64, makes_room: bool) -> Result<bool, Error> {
    let (reply, answer) = mpsc::channel();
    let _ = orders.send(Order::Prove { at, bytes, makes_room, reply });
    answer.recv().unwrap_or_else(|_| Err(Error::Machine("the server is stopping".to_owned())))
}

/// Reads what a model can do.
fn learn(slot: &Slot, kept: &ManagedModel) {
    let card = kept.builder.card();
    slot.learn(card.map_or(Ability::Unreadable, |card| Ability::Task(card.task.value)));
}

/// A load for the estimator.
fn load(claim: &Claim) -> Load {
    Load {
        identity: claim.identity.clone(),
        placement: claim.placement.to_string(),
        manner: short(&claim.placement),
        weights: claim.bytes,
    }
}
