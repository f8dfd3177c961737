//! The model manager: one thread that loads models on demand within the memory limit and evicts idle ones. Models are
//! downloaded and proved on separate threads, so that they do not delay other models.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sconce::core::obstacle::bytes;
use sconce::core::report::Footprint;
use sconce::{Claim, Error, Event, ModelBuilder, Runtime, peak, resident};
use tracing::{info, warn};

use crate::models::eviction::{Admission, EvictionCandidate, admit, evict_over_limit};
use crate::models::incidents;
use crate::models::memory_estimator::{Load, MemoryEstimator};
use crate::models::startup::{spawn, start};
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{Phase, Slot, TaskStatus};

/// Interval of idle checks.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which imminent events are polled: the end of requests in flight, or an earlier startup model.
const SHORT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum time that a startup model waits for earlier ones, to keep the configured order.
const ORDER_TIMEOUT: Duration = Duration::from_secs(2);

/// A command to the manager.
pub(crate) enum Command {
    /// Prepare and load a model for a request.
    Load(Arc<Slot>),
    /// Load a model that is prepared, or record why it failed.
    Prepared(Arc<Slot>, Prepared),
    /// Free memory for provers that take this many bytes. Replies whether they fit.
    ReserveProver { slot: Arc<Slot>, bytes: u64, may_evict: bool, reply: Sender<Result<bool, Error>> },
    /// Manage another model.
    Add(Box<ManagedModel>),
    /// Unload a model that requests no longer find, and forget it.
    Remove(Arc<Slot>),
}

/// A model that is downloaded and proved, but not loaded.
pub(crate) struct Prepared {
    /// Whether other models may be evicted for it.
    may_evict: bool,
    began: Instant,
    claim: Result<Claim, Error>,
    /// Bytes of the prover that proves the real weights before they are loaded.
    prover_bytes: u64,
}

/// A model, which can be loaded repeatedly.
#[derive(Clone)]
pub(crate) struct ManagedModel {
    slot: Arc<Slot>,
    builder: ModelBuilder,
    pub(crate) runtime: Runtime,
    /// Whether it was added at run time. If it can't be loaded, the server goes on.
    is_added: bool,
}

impl ManagedModel {
    pub(crate) fn new(slot: Arc<Slot>, mut builder: ModelBuilder) -> ManagedModel {
        let runtime = builder.get_or_create_runtime();
        ManagedModel { slot, builder, runtime, is_added: false }
    }

    /// A model that is added at run time.
    pub(crate) fn added(slot: Arc<Slot>, builder: ModelBuilder) -> ManagedModel {
        ManagedModel { is_added: true, ..ManagedModel::new(slot, builder) }
    }
}

/// Loads and unloads models.
pub(crate) struct ModelManager {
    app: Arc<App>,
    models: Vec<ManagedModel>,
    estimator: Arc<Mutex<MemoryEstimator>>,
    /// For the threads that prepare models.
    commands: Sender<Command>,
    /// Held while a model is proved: concurrent proofs would distort each other's measurements.
    proving: Arc<Mutex<()>>,
    /// Models to load, in the order in which they were prepared.
    prepared: Vec<(Arc<Slot>, Prepared)>,
    /// Resident bytes of the process without models.
    baseline: u64,
    /// Whether any model was ever loaded.
    any_loaded: bool,
    /// The first load failure.
    failure: Option<Error>,
    /// Models of a pool that were evicted or failed to load.
    lost: Vec<Arc<Slot>>,
}

impl ModelManager {
    pub(crate) fn new(
        app: Arc<App>,
        models: Vec<ManagedModel>,
        estimator: Arc<Mutex<MemoryEstimator>>,
        commands: Sender<Command>,
    ) -> ModelManager {
        for model in &models {
            app.metrics.listed(&model.slot.name);
        }
        let baseline = resident().unwrap_or(0);
        let (proving, prepared) = (Arc::default(), Vec::new());
        ModelManager {
            app,
            models,
            estimator,
            commands,
            proving,
            prepared,
            baseline,
            any_loaded: false,
            failure: None,
            lost: Vec::new(),
        }
    }

    /// Runs until the server stops. If every model fails to load, returns the first failure.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) -> Result<(), Error> {
        for model in &self.models {
            // Startup models do not evict each other.
            if model.slot.is_starting() {
                self.prepare(model, false);
            } else {
                read_card(model);
            }
        }
        while !self.app.is_shutting_down() {
            let wait = if self.prepared.is_empty() { POLL_INTERVAL } else { SHORT_POLL_INTERVAL };
            let command = match commands.recv_timeout(wait) {
                Ok(command) => Some(command),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            let is_idle = command.is_none();
            for command in command.into_iter().chain(commands.try_iter()) {
                match command {
                    Command::Load(slot) => {
                        if let Some(index) = self.position(&slot) {
                            let may_evict = !self.models[index].slot.managed;
                            self.prepare(&self.models[index], may_evict);
                        }
                    }
                    Command::Prepared(slot, prepared) => self.prepared.push((slot, prepared)),
                    Command::Add(model) => {
                        self.app.metrics.listed(&model.slot.name);
                        self.models.push(*model);
                    }
                    Command::Remove(slot) => self.remove(&slot),
                    Command::ReserveProver { slot, bytes, may_evict, reply } => {
                        let fits = self.free_memory(&slot, bytes, may_evict);
                        if matches!(fits, Ok(true)) {
                            self.app.reserved.store(bytes, Ordering::Relaxed);
                        }
                        let _ = reply.send(fits);
                    }
                }
            }
            match self.next() {
                Some((slot, prepared)) => self.load_or_fail(&slot, prepared)?,
                None if is_idle => self.evict(),
                None => {}
            }
            self.remove_lost();
        }
        Ok(())
    }

    /// Downloads and proves a model on a separate thread.
    fn prepare(&self, model: &ManagedModel, may_evict: bool) {
        let (app, model) = (Arc::clone(&self.app), model.clone());
        let slot = Arc::clone(&model.slot);
        let commands = self.commands.clone();
        let proving = Arc::clone(&self.proving);
        let began = Instant::now();
        let prepare = move || {
            let slot = &model.slot;
            slot.enter(Phase::Loading);
            if slot.task() == TaskStatus::Pending {
                read_task(&model);
            }
            let prover_bytes = prover_claim(&app, slot, &model);
            let bytes = *prover_bytes.as_ref().unwrap_or(&0);
            let mut proof = None;
            let mut fits = prover_bytes.map(|_| true);
            if bytes > 0 {
                slot.enter(Phase::Queued);
                proof = Some(proving.lock().unwrap_or_else(PoisonError::into_inner));
                fits = reserve_prover(&commands, slot, bytes, may_evict);
            }
            if slot.managed && matches!(fits, Ok(false)) {
                fits = Err(no_room());
            }
            if matches!(fits, Ok(false)) {
                slot.end_startup();
                slot.enter(Phase::Unloaded);
                return;
            }
            let claim = fits.and_then(|_| {
                model.builder.claim(&mut |event| {
                    if proof.is_none() && matches!(event, Event::Proving { .. }) {
                        slot.enter(Phase::Queued);
                        proof = Some(proving.lock().unwrap_or_else(PoisonError::into_inner));
                    }
                    incidents::handle_event(&app, slot, &event);
                })
            });
            if bytes > 0 {
                app.reserved.store(0, Ordering::Relaxed);
            }
            drop(proof);
            if claim.is_ok() {
                slot.enter(Phase::Queued);
            }
            let prepared = Prepared { may_evict, began, claim, prover_bytes: bytes };
            let _ = commands.send(Command::Prepared(Arc::clone(slot), prepared));
        };
        if let Err(error) = spawn("sconce-prepare", prepare) {
            let prepared = Prepared { may_evict, began, claim: Err(error), prover_bytes: 0 };
            let _ = self.commands.send(Command::Prepared(slot, prepared));
        }
    }

    /// The position of a model, unless it was removed.
    fn position(&self, slot: &Arc<Slot>) -> Option<usize> {
        self.models.iter().position(|model| Arc::ptr_eq(&model.slot, slot))
    }

    /// Unloads a model and forgets it. A load in progress is dropped when it is prepared.
    fn remove(&mut self, slot: &Arc<Slot>) {
        let Some(index) = self.position(slot) else { return };
        self.unload(index, "removal");
        self.models.remove(index);
        // Requests that wait for it end.
        slot.fail("the model was removed".to_owned());
    }

    /// Removes models of a pool that were evicted or failed to load: the pool places them again.
    fn remove_lost(&mut self) {
        for slot in std::mem::take(&mut self.lost) {
            self.app.remove_slot(&slot);
            self.models.retain(|model| !Arc::ptr_eq(&model.slot, &slot));
            if !slot.has_failed() {
                slot.fail("the model was evicted".to_owned());
            }
        }
    }

    /// The next model to load: startup models in configured order, then requested models in order of preparation. A
    /// startup model waits briefly for earlier ones whose files are still being read, so that the configured order
    /// decides which models fit into memory.
    fn next(&mut self) -> Option<(Arc<Slot>, Prepared)> {
        let index_of = |slot: &Arc<Slot>| self.position(slot).unwrap_or(0);
        let order = |(position, (slot, prepared)): &(usize, &(Arc<Slot>, Prepared))| {
            (prepared.may_evict, if prepared.may_evict { *position } else { index_of(slot) })
        };
        let (position, (slot, prepared)) = self.prepared.iter().enumerate().min_by_key(order)?;
        let is_reading =
            |model: &ManagedModel| model.slot.is_starting() && matches!(model.slot.phase(), Phase::Loading);
        let waits = !prepared.may_evict && prepared.began.elapsed() < ORDER_TIMEOUT;
        if waits && self.models[..index_of(slot)].iter().any(is_reading) {
            return None;
        }
        Some(self.prepared.remove(position))
    }

    /// Loads a prepared model and records a failure. If every model has failed, returns the first failure.
    fn load_or_fail(&mut self, slot: &Arc<Slot>, prepared: Prepared) -> Result<(), Error> {
        let Some(index) = self.position(slot) else { return Ok(()) };
        if let Err(error) = self.load(index, prepared) {
            let why = error.to_string();
            // Probes retry the load; the same failure is logged once.
            if slot.fail(why.clone()) {
                self.app.edge.telemetry.log(|| warn!(model = slot.name, why, "model failed to load"));
            }
            if slot.managed {
                self.lost.push(Arc::clone(slot));
            }
            if !self.models[index].is_added {
                self.failure.get_or_insert(error);
            }
        }
        let all_failed = self.models.iter().all(|model| !model.is_added && model.slot.last_load_failed());
        match self.failure.take_if(|_| all_failed && !self.any_loaded) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn estimator(&self) -> MutexGuard<'_, MemoryEstimator> {
        self.estimator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> Option<u64> {
        self.app.settings().memory_limit
    }

    /// The loaded models.
    fn loaded(&self) -> Vec<EvictionCandidate> {
        let model = |(index, model): (usize, &ManagedModel)| {
            let last_used = model.slot.last_used();
            model.slot.loaded().map(|loaded| EvictionCandidate {
                slot: index,
                loaded_at: loaded.loaded_at,
                last_used,
            })
        };
        self.models.iter().enumerate().filter_map(model).collect()
    }

    /// Loads a model. If it does not fit and may not evict others, it stays unloaded until a request needs it.
    fn load(&mut self, index: usize, prepared: Prepared) -> Result<(), Error> {
        let Prepared { may_evict, began, claim, prover_bytes } = prepared;
        let (app, model) = (Arc::clone(&self.app), self.models[index].clone());
        let slot = &model.slot;
        if slot.loaded().is_some() {
            return Ok(());
        }
        let claim = claim?;
        let estimated = self.estimator().estimate(&load(&claim));
        // What reading the card and earlier forecasts left in the allocator is free.
        model.runtime.release_free_memory();
        // The prover of the real weights exits before they are loaded.
        if !self.free_memory(slot, estimated.peak.max(prover_bytes), may_evict)? {
            if slot.managed {
                return Err(no_room());
            }
            slot.end_startup();
            slot.enter(Phase::Unloaded);
            return Ok(());
        }
        let before = resident().unwrap_or(0);
        let _ = peak();
        let loaded = start(&app, slot, model.builder.clone())?;
        model.runtime.release_free_memory();
        let after = resident().unwrap_or(0);
        let grown = |bytes: u64| bytes.saturating_sub(before);
        let measured = Footprint { resident: grown(after), peak: grown(peak().unwrap_or(after).max(after)) };
        let (loaded_as, took) = (load(&loaded.model.claim().unwrap_or(claim)), began.elapsed());
        self.estimator().record(loaded_as, estimated, measured, took);
        app.metrics.loaded(&slot.name, estimated, measured);
        slot.publish(loaded, estimated, measured, took);
        self.any_loaded = true;
        self.enforce_limit(index)
    }

    /// Evicts other models until `bytes` fit into the memory limit. Returns whether they fit.
    fn free_memory(&mut self, slot: &Arc<Slot>, bytes: u64, may_evict: bool) -> Result<bool, Error> {
        loop {
            let (limit, now) = (self.app.settings().models_limit(), Instant::now());
            let (resident, provers) = (resident().unwrap_or(0), self.app.prover_memory());
            match admit(limit, resident, provers, self.baseline, bytes, &self.loaded(), now) {
                Admission::Load => return Ok(true),
                Admission::Evict(_) | Admission::Wait(_) if !may_evict => return Ok(false),
                Admission::Evict(other) => self.unload(other, "eviction"),
                Admission::Wait(_) if self.app.is_shutting_down() => {
                    return Err(Error::Machine("the server is shutting down".to_owned()));
                }
                Admission::Wait(time) => {
                    slot.enter(Phase::WaitingForMemory);
                    thread::sleep(time.min(POLL_INTERVAL));
                }
                Admission::Never => return Err(self.does_not_fit(bytes)),
            }
        }
    }

    fn does_not_fit(&self, needed: u64) -> Error {
        Error::Machine(format!(
            "the model needs about {}, the server itself {}, and the memory limit of models is {}\n\
             hint: raise `memory_limit`, or choose a narrower `dtype`",
            bytes(needed),
            bytes(self.baseline),
            bytes(self.app.settings().models_limit().unwrap_or(0))
        ))
    }

    /// Enforces the memory limit after a load: evicts other models, and at last the loaded one.
    fn enforce_limit(&mut self, index: usize) -> Result<(), Error> {
        while let Some(other) = evict_over_limit(self.limit(), self.app.memory_used(), &self.loaded()) {
            self.unload(other, "memory_limit");
            if other == index {
                break;
            }
        }
        let now = resident().unwrap_or(0);
        if self.limit().is_some_and(|limit| now > limit) && self.models[index].slot.loaded().is_some() {
            self.unload(index, "memory_limit");
            return Err(self.does_not_fit(now.saturating_sub(self.baseline)));
        }
        Ok(())
    }

    /// Unloads idle models, and the least recently used one if memory exceeds the limit.
    fn evict(&mut self) {
        let (idle, now) = (self.app.settings().idle_unload, Instant::now());
        for model in self.loaded() {
            let is_idle = idle.is_some_and(|idle| now.saturating_duration_since(model.last_used) > idle);
            let slot = &self.models[model.slot].slot;
            // A pool decides itself when its models are unloaded.
            if is_idle && !slot.managed && slot.loaded().is_some_and(|loaded| !loaded.is_busy(true)) {
                self.unload(model.slot, "idle");
            }
        }
        // Without a limit the memory is not measured: outside Linux that spawns a process.
        let evicted = self
            .limit()
            .and_then(|limit| evict_over_limit(Some(limit), self.app.memory_used(), &self.loaded()));
        if let Some(slot) = evicted {
            self.unload(slot, "memory_limit");
        }
    }

    /// Withdraws a model, waits for its requests in flight, and releases its memory.
    fn unload(&mut self, index: usize, reason: &str) {
        let slot = &self.models[index].slot;
        let Some(loaded) = slot.withdraw() else { return };
        self.app.metrics.unloaded(&slot.name, reason);
        self.app.edge.telemetry.log(|| info!(model = slot.name, reason, "model unloaded"));
        let began = Instant::now();
        while loaded.is_busy(false) && began.elapsed() < self.app.settings().http.time_limit {
            thread::sleep(SHORT_POLL_INTERVAL);
        }
        loaded.queue.close();
        loaded.join();
        drop(loaded);
        self.models[index].runtime.release_free_memory();
        if self.models[index].slot.managed {
            self.lost.push(Arc::clone(&self.models[index].slot));
        }
    }
}

/// The error of a model of a pool, which may evict no other model.
fn no_room() -> Error {
    Error::Machine("the model does not fit beside the loaded models".to_owned())
}

/// Bytes that the provers of a model will take; 0 without a memory limit. A model that was loaded before is already proved:
/// checking it again would load its tokenizer while other loads are being measured.
fn prover_claim(app: &App, slot: &Slot, model: &ManagedModel) -> Result<u64, Error> {
    if slot.memory().is_some() {
        return Ok(0);
    }
    let claim = |_| model.builder.prover_claim(&mut |event| incidents::handle_event(app, slot, &event));
    app.settings().memory_limit.map_or(Ok(0), claim)
}

/// Asks the manager to free memory for a prover. Returns whether it fits.
fn reserve_prover(
    commands: &Sender<Command>,
    slot: &Arc<Slot>,
    bytes: u64,
    may_evict: bool,
) -> Result<bool, Error> {
    let (reply, response) = mpsc::channel();
    let _ = commands.send(Command::ReserveProver { slot: Arc::clone(slot), bytes, may_evict, reply });
    response.recv().unwrap_or_else(|_| Err(Error::Machine("the server is shutting down".to_owned())))
}

/// Reads the task of a model that is loaded on demand, on a separate thread.
fn read_card(model: &ManagedModel) {
    let own = model.clone();
    if spawn("sconce-card", move || read_task(&own)).is_err() {
        model.slot.set_task(TaskStatus::Unavailable);
    }
}

/// Reads the task of a model from its card.
fn read_task(model: &ManagedModel) {
    let card = model.builder.card();
    model.slot.set_task(card.map_or(TaskStatus::Unavailable, |card| TaskStatus::Known(card.task.value)));
}

/// The input of the estimator.
pub(super) fn load(claim: &Claim) -> Load {
    Load {
        identity: claim.identity.clone(),
        placement: claim.placement.to_string(),
        backend: short(&claim.placement),
        weights: claim.bytes,
    }
}
