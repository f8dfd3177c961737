//! State that all requests share: settings, model slots, metrics, text threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sconce::{Runtime, Task};
use sconce_http::Edge;
use sconce_http::refusal::{Kind, Refusal};
use tokio_util::sync::CancellationToken;

use crate::schedule::text_pool::TextPool;
use crate::settings::Settings;
use crate::state::metrics::Metrics;
use crate::state::requests::RequestCounter;
use crate::state::slot::{LoadedModel, Slot, TaskStatus};

/// State that all requests share.
pub(crate) struct App {
    settings: RwLock<Arc<Settings>>,
    /// The HTTP edge: keys, limits, telemetry, shutdown.
    pub(crate) edge: Arc<Edge>,
    pub(crate) metrics: Metrics,
    pub(crate) text_pool: TextPool,
    slots: RwLock<Arc<[Arc<Slot>]>>,
    /// The distinct runtimes of the models.
    runtimes: Vec<Runtime>,
    /// Bytes reserved for a prover that is about to start.
    pub(crate) reserved: AtomicU64,
    /// Sends a load command for a slot to the model manager.
    send_load: Box<dyn Fn(Arc<Slot>) + Send + Sync>,
    stop: CancellationToken,
    paused: AtomicBool,
    /// Requests that are being answered.
    pub(crate) requests: RequestCounter,
    pub(crate) started: Instant,
}

/// The slot that the path `/models/NAME/…` selects: the request can use no other model.
#[derive(Clone)]
pub(crate) struct Scope(pub(crate) Arc<Slot>);

impl App {
    pub(crate) fn new(
        settings: Settings,
        edge: Arc<Edge>,
        metrics: Metrics,
        text_pool: TextPool,
        slots: Vec<Arc<Slot>>,
        send_load: impl Fn(Arc<Slot>) + Send + Sync + 'static,
        stop: CancellationToken,
    ) -> App {
        App {
            settings: RwLock::new(Arc::new(settings)),
            edge,
            metrics,
            text_pool,
            slots: RwLock::new(slots.into()),
            runtimes: Vec::new(),
            reserved: AtomicU64::new(0),
            send_load: Box::new(send_load),
            stop,
            paused: AtomicBool::new(false),
            requests: RequestCounter::default(),
            started: Instant::now(),
        }
    }

    /// The settings as of now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies other settings. Threads and the maximum number of connections stay.
    pub(crate) fn reload(&self, settings: Settings) {
        for loaded in self.slots().iter().filter_map(|slot| slot.loaded()) {
            loaded.queue.set_limit(settings.queue_seconds);
        }
        self.edge.reload(settings.edge());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// Sets the runtimes of the models, whose provers count against the memory limit.
    pub(crate) fn with_runtimes(self, runtimes: Vec<Runtime>) -> App {
        App { runtimes, ..self }
    }

    /// Resident bytes of prover processes.
    pub(crate) fn provers(&self) -> u64 {
        self.runtimes.iter().map(Runtime::prover_resident).sum()
    }

    /// Resident or reserved bytes of prover processes.
    pub(crate) fn prover_memory(&self) -> u64 {
        self.provers().max(self.reserved.load(Ordering::Relaxed))
    }

    /// Resident bytes of this process and its provers, reservations included.
    pub(crate) fn memory_used(&self) -> u64 {
        sconce::resident().unwrap_or(0) + self.prover_memory()
    }

    /// Begins graceful shutdown, as SIGTERM does.
    pub(crate) fn drain(&self) {
        self.stop.cancel();
    }

    /// Completes when graceful shutdown is requested.
    pub(crate) async fn drained(&self) {
        self.stop.cancelled().await;
    }

    /// Whether graceful shutdown was requested.
    pub(crate) fn is_draining(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Refuses new requests, or accepts them again.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::SeqCst);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// The distinct runtimes of the models.
    pub(crate) fn runtimes(&self) -> &[Runtime] {
        &self.runtimes
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.edge.is_shutting_down()
    }

    /// Closes all queues, so that their workers end.
    pub(crate) fn close_queues(&self) {
        for loaded in self.slots().iter().filter_map(|slot| slot.loaded()) {
            loaded.queue.close();
        }
    }

    /// All models, in the order in which they were added.
    pub(crate) fn slots(&self) -> Arc<[Arc<Slot>]> {
        Arc::clone(&self.slots.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The slots that a request may use: the one that its path names, or all.
    pub(crate) fn slots_in(&self, scope: Option<&Scope>) -> Arc<[Arc<Slot>]> {
        scope.map_or_else(|| self.slots(), |Scope(slot)| Arc::new([Arc::clone(slot)]))
    }

    /// Adds a model, whose name must be new.
    pub(crate) fn add_slot(&self, slot: Arc<Slot>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        *slots = slots.iter().cloned().chain([slot]).collect();
    }

    /// Removes a model: requests no longer find it.
    pub(crate) fn remove_slot(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        *slots = slots.iter().filter(|other| !Arc::ptr_eq(other, slot)).cloned().collect();
    }

    /// The model called `name`. Without a name: the only model, or the only one with one of `tasks`.
    fn resolve(
        &self,
        scope: Option<&Scope>,
        name: Option<&str>,
        tasks: &[Task],
    ) -> Result<Arc<Slot>, Refusal> {
        let slots = self.slots_in(scope);
        if let Some(name) = name {
            if let Some(slot) = slots.iter().find(|slot| slot.has_name(name)) {
                return Ok(Arc::clone(slot));
            }
            if !self.settings().any_model {
                let message = format!("unknown model `{name}`; available: {}", names(slots.iter()));
                return Err(Refusal::new(Kind::UnknownModel, message).for_model(name));
            }
        }
        match &*slots {
            [only] => Ok(Arc::clone(only)),
            _ => self.resolve_by_task(tasks),
        }
    }

    /// The only model whose task is one of `tasks`.
    fn resolve_by_task(&self, tasks: &[Task]) -> Result<Arc<Slot>, Refusal> {
        let slots = self.slots();
        let has_task =
            |slot: &&Arc<Slot>| matches!(slot.task(), TaskStatus::Known(task) if tasks.contains(&task));
        let matching: Vec<&Arc<Slot>> = slots.iter().filter(has_task).collect();
        let pending = slots.iter().find(|slot| slot.task() == TaskStatus::Pending);
        match (matching.as_slice(), pending) {
            ([only], None) => Ok(Arc::clone(only)),
            ([], None) => {
                let tasks: Vec<String> = tasks.iter().map(|task| format!("`{task}`")).collect();
                let names = names(slots.iter());
                let message = format!("no model has the task {}; available: {names}", tasks.join(" or "));
                Err(Refusal::new(Kind::UnknownModel, message))
            }
            ([] | [_], Some(pending)) => {
                let message = format!(
                    "the request names no model, and the task of `{}` is not known yet\n\
                     hint: name a model in `model`, `x-sconce-model` or the path `/models/NAME/…`",
                    pending.name
                );
                Err(Refusal::new(Kind::NotReady, message))
            }
            ([_, _, ..], _) => {
                let names = names(matching.into_iter());
                let message = format!(
                    "the request names no model, and several match: {names}\n\
                     hint: name one in `model`, `x-sconce-model` or the path `/models/NAME/…`"
                );
                Err(Refusal::new(Kind::UnknownModel, message))
            }
        }
    }

    /// Requests that a model is loaded, unless it is loaded, loading, or failed a moment ago.
    pub(crate) fn request_load(&self, slot: &Arc<Slot>) {
        if slot.request_load() {
            (self.send_load)(Arc::clone(slot));
        }
    }

    /// The slot called `name`.
    pub(crate) fn slot(&self, scope: Option<&Scope>, name: &str) -> Result<Arc<Slot>, Refusal> {
        self.resolve(scope, Some(name), &[])
    }

    /// The loaded model called `name`, or the only one with one of `tasks`. Requests a load if it is not loaded, and waits for
    /// it up to `wait`.
    pub(crate) async fn loaded(
        &self,
        scope: Option<&Scope>,
        name: Option<&str>,
        tasks: &[Task],
        wait: Duration,
    ) -> Result<Arc<LoadedModel>, Refusal> {
        let slot = self.resolve(scope, name, tasks)?;
        let mut phases = slot.phases();
        let began = tokio::time::Instant::now();
        loop {
            if let Some(loaded) = slot.acquire() {
                return Ok(loaded);
            }
            self.request_load(&slot);
            let may_wait = !slot.has_failed() && !self.is_shutting_down();
            if !may_wait || tokio::time::timeout_at(began + wait, phases.changed()).await.is_err() {
                let load_seconds = slot.memory().map_or(1.0, |memory| memory.load_seconds);
                let message = format!("`{}` is not ready: {}", slot.name, slot.phase().reason());
                return Err(Refusal::new(Kind::NotReady, message)
                    .retry_after(load_seconds)
                    .for_model(&slot.name));
            }
        }
    }
}

/// The names of models for a message.
fn names<'a>(slots: impl Iterator<Item = &'a Arc<Slot>>) -> String {
    slots.map(|slot| format!("`{}`", slot.name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sconce_http::{Dialect, RouteRules};

    use super::*;
    use crate::state::slot::LoadPolicy;

    fn app(any_model: bool, slots: &[(&str, TaskStatus)]) -> App {
        let slot = |&(name, task): &(&str, TaskStatus)| {
            let slot = Slot::new(name.to_owned(), vec![format!("also {name}")], LoadPolicy::OnDemand, false);
            slot.set_task(task);
            Arc::new(slot)
        };
        let settings = Settings { any_model, ..Settings::default() };
        let text_pool = TextPool::start(1, 1).expect("a thread");
        let metrics = Metrics::new().expect("metrics");
        let slots = slots.iter().map(slot).collect();
        let rules = RouteRules { probes: &[], public: &[], pages: &[], dialect: |_| Dialect::Tei };
        let edge = Arc::new(Edge::new(settings.edge(), rules, SocketAddr::from(([127, 0, 0, 1], 0))));
        App::new(settings, edge, metrics, text_pool, slots, |_| {}, CancellationToken::new())
    }

    const EMBED: TaskStatus = TaskStatus::Known(Task::Embed);
    const RERANK: TaskStatus = TaskStatus::Known(Task::Rerank);

    /// The index of the slot, or the kind of the refusal.
    fn resolve(app: &App, scope: Option<usize>, name: Option<&str>, tasks: &[Task]) -> Result<usize, Kind> {
        let slots = app.slots();
        let scope = scope.map(|index| Scope(Arc::clone(&slots[index])));
        let slot = app.resolve(scope.as_ref(), name, tasks).map_err(|refusal| refusal.kind)?;
        Ok(slots.iter().position(|other| Arc::ptr_eq(other, &slot)).expect("one of them"))
    }

    #[test]
    fn without_a_name_the_only_model_with_the_task_is_chosen() {
        let two = app(false, &[("a", EMBED), ("b", RERANK)]);
        assert_eq!(resolve(&two, None, None, &[Task::Embed]), Ok(0));
        assert_eq!(resolve(&two, None, None, &[Task::Rerank, Task::Tokens]), Ok(1));
        assert_eq!(resolve(&two, None, None, &[Task::Sparse]), Err(Kind::UnknownModel));
        assert_eq!(
            resolve(&two, None, None, &[Task::Embed, Task::Rerank]),
            Err(Kind::UnknownModel),
            "two match"
        );
        let alone = app(false, &[("a", EMBED)]);
        assert_eq!(resolve(&alone, None, None, &[Task::Rerank]), Ok(0), "the operation checks the task");
    }

    #[test]
    fn a_pending_task_could_match_and_an_unavailable_one_does_not() {
        let tasks = [Task::Embed];
        let app_with = |others: &[(&str, TaskStatus)]| app(false, &[&[("a", EMBED)], others].concat());
        assert_eq!(
            resolve(&app_with(&[("b", TaskStatus::Pending)]), None, None, &tasks),
            Err(Kind::NotReady)
        );
        assert_eq!(resolve(&app_with(&[("b", TaskStatus::Unavailable)]), None, None, &tasks), Ok(0));
        let three = app_with(&[("b", EMBED), ("c", TaskStatus::Pending)]);
        assert_eq!(resolve(&three, None, None, &tasks), Err(Kind::UnknownModel), "two match already");
        let none = app(false, &[("a", RERANK), ("b", TaskStatus::Pending)]);
        assert_eq!(resolve(&none, None, None, &tasks), Err(Kind::NotReady));
        assert_eq!(resolve(&none, None, Some("b"), &tasks), Ok(1), "a name is enough");
    }

    #[test]
    fn a_model_is_found_until_it_is_removed() {
        let app = app(false, &[("a", EMBED)]);
        let slot = Arc::new(Slot::new("b".to_owned(), Vec::new(), LoadPolicy::OnDemand, false));
        app.add_slot(Arc::clone(&slot));
        assert_eq!(resolve(&app, None, Some("b"), &[]), Ok(1));
        app.remove_slot(&slot);
        assert_eq!(resolve(&app, None, Some("b"), &[]), Err(Kind::UnknownModel));
        assert_eq!(app.slots().len(), 1);
    }

    #[test]
    fn a_name_is_resolved_within_the_scope_of_the_path() {
        let two = app(false, &[("a", EMBED), ("b", RERANK)]);
        assert_eq!(resolve(&two, None, Some("also b"), &[Task::Embed]), Ok(1));
        assert_eq!(resolve(&two, Some(1), None, &[Task::Embed]), Ok(1));
        assert_eq!(resolve(&two, Some(1), Some("b"), &[Task::Embed]), Ok(1));
        assert_eq!(resolve(&two, Some(1), Some("a"), &[Task::Embed]), Err(Kind::UnknownModel));
        assert_eq!(resolve(&two, None, Some("c"), &[Task::Embed]), Err(Kind::UnknownModel));
        let any = app(true, &[("a", EMBED), ("b", RERANK)]);
        assert_eq!(resolve(&any, None, Some("c"), &[Task::Rerank]), Ok(1));
        assert_eq!(resolve(&any, Some(0), Some("c"), &[Task::Rerank]), Ok(0));
        assert_eq!(resolve(&any, None, Some("b"), &[Task::Embed]), Ok(1), "a known name takes precedence");
    }
}
