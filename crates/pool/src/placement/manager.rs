//! The placement manager of a gateway: asks workers for bids, and loads and unloads models.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::IntCounterVec;
use sconce_http::Edge;
use sconce_registry::{DesiredModel, DesiredModels, DesiredWatcher, Watcher};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use super::lease::Leadership;
use super::message::{Message, TOPIC};
use super::offers::ask;
use super::state::{State, View};
use super::status::{DesiredStatus, PlacementStatus};
use super::worker_api::WorkerApi;
use crate::backend::Backend;
use crate::place::{Action, Desired};

/// Interval of rounds in which nothing happens.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a refusal is valid. It is repeated every round while it holds.
const REFUSAL_TTL: Duration = Duration::from_secs(4);
/// Time limit of the release of the lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before a subscription that failed starts again.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Counters of placement, with the label `outcome`: `ok`, `failed`.
pub(crate) struct Counters {
    pub(crate) loads: IntCounterVec,
    pub(crate) unloads: IntCounterVec,
}

/// Why a model can be loaded nowhere.
struct Refusal {
    reason: String,
    /// When it is tried again.
    due: Instant,
    /// When this expires.
    expires: Instant,
}

/// The placement manager of one gateway.
pub(crate) struct Placement {
    backend: Arc<dyn Backend>,
    members: Watcher,
    desired: DesiredWatcher,
    api: Arc<WorkerApi>,
    edge: Arc<Edge>,
    counters: Counters,
    leadership: Leadership,
    state: Mutex<State>,
    /// Models that requests have named since the last message to other gateways.
    used: Mutex<BTreeSet<String>>,
    /// Models whose replicas were all too busy for a request since then.
    overloaded: Mutex<BTreeSet<String>>,
    /// Why models can be loaded nowhere.
    refusals: Mutex<BTreeMap<String, Refusal>>,
    /// Counts the changes of `refusals`.
    refused: watch::Sender<u64>,
    wake: Notify,
}

impl Placement {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        members: Watcher,
        api: WorkerApi,
        edge: Arc<Edge>,
        counters: Counters,
    ) -> Placement {
        Placement {
            desired: backend.watch_desired(),
            backend,
            members,
            api: Arc::new(api),
            edge,
            counters,
            leadership: Leadership::default(),
            state: Mutex::default(),
            used: Mutex::default(),
            overloaded: Mutex::default(),
            refusals: Mutex::default(),
            refused: watch::Sender::new(0),
            wake: Notify::new(),
        }
    }

    /// The desired models, as far as they are known.
    pub(crate) fn models(&self) -> Arc<DesiredModels> {
        self.desired.models().unwrap_or_default()
    }

    /// The desired model with this name or source.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<DesiredModel>> {
        let models = self.desired.models()?;
        models.get(name).or_else(|| models.values().find(|one| one.source == name)).cloned()
    }

    /// Takes note of a request for a desired model.
    pub(crate) fn note_use(&self, model: &str) {
        insert(&self.used, model);
    }

    /// Takes note of a request that waits for a model, and tells the gateway that places models.
    pub(crate) async fn want(&self, model: &str) {
        lock(&self.state).demand.used(model, Instant::now());
        self.wake.notify_one();
        if !self.leadership.is_held() {
            self.publish(&Message::Used(vec![model.to_owned()])).await;
        }
    }

    /// Takes note of a request that all replicas of a model were too busy for.
    pub(crate) fn note_overload(&self, model: &str) {
        insert(&self.overloaded, model);
    }

    /// Why a model can be loaded nowhere now, and the time until the next attempt.
    pub(crate) fn refusal(&self, model: &str) -> Option<(String, Duration)> {
        let (refusals, now) = (lock(&self.refusals), Instant::now());
        let refusal = refusals.get(model).filter(|refusal| now < refusal.expires)?;
        Some((refusal.reason.clone(), refusal.due.saturating_duration_since(now)))
    }

    /// Changes when a model can be loaded nowhere.
    pub(crate) fn refusals(&self) -> watch::Receiver<u64> {
        self.refused.subscribe()
    }

    /// Places models while this gateway holds the lease, until `models` ends: it changes with the models of workers.
    pub(crate) async fn run(self: Arc<Self>, holder: String, mut models: watch::Receiver<u64>) {
        let mut tasks = JoinSet::new();
        let own = Arc::clone(&self);
        tasks.spawn(async move {
            let changed = |leads: bool| {
                own.log(|| info!(leads, "the lease to place models has changed"));
                own.wake.notify_one();
            };
            own.leadership.hold(&*own.backend, &holder, changed).await;
        });
        tasks.spawn(Arc::clone(&self).listen());
        let (mut desired, mut ticks) = (self.desired.clone(), interval(INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.publish_use().await,
                () = self.wake.notified() => {}
                changed = models.changed() => if changed.is_err() { return },
                true = desired.changed() => {}
            }
            while tasks.try_join_next().is_some() {}
            let now = Instant::now();
            self.members.read(|map| lock(&self.state).update(map, now));
            let may_act = self.leadership.is_held() && self.members.is_connected();
            if may_act && !lock(&self.state).guard.is_holding(now) {
                self.round(&mut tasks).await;
            }
        }
    }

    /// Hands placement over to another gateway. Only after [`Placement::run`] has ended.
    pub(crate) async fn stop(&self) {
        if timeout(RELEASE_TIMEOUT, self.leadership.release(&*self.backend)).await.is_err() {
            debug!("the lease of placement could not be released in time");
        }
    }

    /// One round: asks for bids, decides, and begins loads and unloads.
    async fn round(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let Some(models) = self.desired.models() else { return };
        let now = Instant::now();
        let (view, desired, questions) = {
            let mut state = lock(&self.state);
            state.set_desired(&models);
            let (view, desired) = (state.view(&models), state.desired(&models, now));
            let questions = state.questions(&view, &desired, now);
            (view, desired, questions)
        };
        let answers = ask(&self.api, questions).await;
        let now = Instant::now();
        let actions = lock(&self.state).decide(answers, &view, &desired, now);
        for action in actions {
            if !self.leadership.is_held() {
                return;
            }
            let Some(url) = lock(&self.state).begin(&action, now) else { continue };
            if let Action::Load { model, .. } = &action {
                lock(&self.refusals).remove(model);
            }
            tasks.spawn(Arc::clone(self).act(action, url));
        }
        self.publish_refusals(&view, &desired).await;
    }

    fn log(&self, event: impl FnOnce()) {
        self.edge.telemetry.log(event);
    }

    /// Loads or unloads a model.
    async fn act(self: Arc<Self>, action: Action, url: String) {
        let label = |outcome: &Result<(), String>| if outcome.is_ok() { "ok" } else { "failed" };
        match action {
            Action::Load { worker, model, source } => {
                self.log(|| info!(model, worker, "the pool loads a model"));
                let outcome = self.api.load(&url, &model, &source).await;
                if let Err(reason) = &outcome {
                    self.log(|| warn!(model, worker, reason, "a model could not be loaded"));
                }
                self.counters.loads.with_label_values(&[label(&outcome)]).inc();
                lock(&self.state).loaded(&worker, &model, &outcome, Instant::now());
                self.wake.notify_one();
            }
            Action::Unload { worker, model } => {
                self.log(|| info!(model, worker, "the pool unloads a model"));
                let outcome = self.api.unload(&url, &model).await;
                if let Err(reason) = &outcome {
                    self.log(|| warn!(model, worker, reason, "a model could not be unloaded"));
                }
                self.counters.unloads.with_label_values(&[label(&outcome)]).inc();
            }
        }
    }

    /// Tells all gateways which models with demand can be loaded nowhere.
    async fn publish_refusals(&self, view: &View, desired: &[Desired]) {
        let now = Instant::now();
        for one in desired.iter().filter(|one| one.target() > 0 && view.count(&one.model) == (0, 0)) {
            // A load may have begun in this round.
            let problem = {
                let state = lock(&self.state);
                if state.is_loading(&one.model) { None } else { state.problem(view, one, now) }
            };
            let Some((reason, left)) = problem else { continue };
            self.set_refusal(&one.model, &reason, left);
            let retry_after = left.as_secs_f64();
            self.publish(&Message::Refused { model: one.model.clone(), reason, retry_after }).await;
        }
    }

    fn set_refusal(&self, model: &str, reason: &str, left: Duration) {
        let now = Instant::now();
        let (due, expires) = (now + left, now + left.min(REFUSAL_TTL));
        let known = lock(&self.refusals)
            .insert(model.to_owned(), Refusal { reason: reason.to_owned(), due, expires });
        // Requests that wait wake up for news only: they ask for another round.
        if known.is_none_or(|known| known.expires <= now || known.reason != reason) {
            self.refused.send_modify(|count| *count += 1);
        }
    }

    /// Tells the gateway that places models which ones are used.
    async fn publish_use(&self) {
        let taken = |models: &Mutex<BTreeSet<String>>| std::mem::take(&mut *lock(models));
        let (used, overloaded) = (taken(&self.used), taken(&self.overloaded));
        if !used.is_empty() {
            self.publish(&Message::Used(used.into_iter().collect())).await;
        }
        if !overloaded.is_empty() {
            self.publish(&Message::Overloaded(overloaded.into_iter().collect())).await;
        }
    }

    async fn publish(&self, message: &Message) {
        let Ok(json) = serde_json::to_vec(message) else { return };
        if let Err(error) = self.backend.publish(TOPIC, json).await {
            debug!(%error, "other gateways do not know which models are used");
        }
    }

    /// Takes the messages of all gateways, forever.
    async fn listen(self: Arc<Self>) {
        loop {
            if let Ok(mut messages) = self.backend.subscribe(TOPIC).await {
                while let Some(message) = messages.next().await {
                    if let Ok(message) = serde_json::from_slice(&message) {
                        self.take(message);
                    }
                }
            }
            sleep(RETRY_DELAY).await;
        }
    }

    fn take(&self, message: Message) {
        let now = Instant::now();
        match message {
            Message::Used(models) => {
                let mut state = lock(&self.state);
                for model in models {
                    state.demand.used(&model, now);
                }
                self.wake.notify_one();
            }
            Message::Overloaded(overloaded) => {
                let models = self.models();
                let mut state = lock(&self.state);
                let view = state.view(&models);
                for model in overloaded {
                    let (loaded, loading) = view.count(&model);
                    state.demand.overloaded(&model, loaded + loading, now);
                }
                self.wake.notify_one();
            }
            Message::Refused { model, reason, retry_after } if !self.leadership.is_held() => {
                let left = Duration::try_from_secs_f64(retry_after).unwrap_or_default();
                self.set_refusal(&model, &reason, left.min(Duration::from_mins(1)));
            }
            Message::Refused { .. } => {}
        }
    }

    /// Placement as this gateway sees it.
    pub(crate) fn status(&self) -> PlacementStatus {
        let (models, now, leader) = (self.models(), Instant::now(), self.leadership.is_held());
        let mut state = lock(&self.state);
        let view = state.view(&models);
        let of_model = |(one, desired): (&Arc<DesiredModel>, &Desired)| {
            let (loaded, loading) = view.count(&one.model);
            let known = if leader { state.problem(&view, desired, now) } else { self.refusal(&one.model) };
            let problem = known.filter(|_| loaded + loading < desired.target());
            DesiredStatus {
                model: one.model.clone(),
                source: one.source.clone(),
                min_replicas: one.min_replicas,
                max_replicas: one.max_replicas,
                class: one.class.clone(),
                loaded,
                loading,
                target: desired.target(),
                problem: problem.map(|(reason, _)| reason),
            }
        };
        let desired = state.desired(&models, now);
        let held = state.guard.is_holding(now);
        PlacementStatus { leader, held, desired: models.values().zip(&desired).map(of_model).collect() }
    }
}

fn insert(models: &Mutex<BTreeSet<String>>, model: &str) {
    let mut models = lock(models);
    if !models.contains(model) {
        models.insert(model.to_owned());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
