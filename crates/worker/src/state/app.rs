//! State that all requests share: settings, model slots, metrics, text threads.

use std::ops::Range;
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
    pub(crate) slots: Vec<Arc<Slot>>,
    /// The distinct runtimes of the models.
    runtimes: Vec<Runtime>,
    /// Bytes reserved for a prover that is about to start.
    pub(crate) reserved: AtomicU64,
    /// Sends a load command for a slot to the model manager.
    send_load: Box<dyn Fn(usize) + Send + Sync>,
    stop: CancellationToken,
    paused: AtomicBool,
    /// Requests that are being answered.
    pub(crate) requests: RequestCounter,
    pub(crate) started: Instant,
}

/// The index of the slot that the path `/models/NAME/…` selects: the request can use no other model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope(pub(crate) usize);

impl App {
    pub(crate) fn new(
        settings: Settings,
        edge: Arc<Edge>,
        metrics: Metrics,
        text_pool: TextPool,
        slots: Vec<Arc<Slot>>,
        send_load: impl Fn(usize) + Send + Sync + 'static,
        stop: CancellationToken,
    ) -> App {
        App {
            settings: RwLock::new(Arc::new(settings)),
            edge,
            metrics,
            text_pool,
            slots,
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
        for loaded in self.slots.iter().filter_map(|slot| slot.loaded()) {
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
        for loaded in self.slots.iter().filter_map(|slot| slot.loaded()) {
            loaded.queue.close();
        }
    }

    /// The slots that a request may use: the one that its path names, or all.
    pub(crate) fn slot_indices(&self, scope: Option<Scope>) -> Range<usize> {
        scope.map_or(0..self.slots.len(), |Scope(index)| index..index + 1)
    }

    /// The index of the model called `name`. Without a name: the only model, or the only one with one of `tasks`.
    fn resolve(&self, scope: Option<Scope>, name: Option<&str>, tasks: &[Task]) -> Result<usize, Refusal> {
        let mut indices = self.slot_indices(scope);
        if let Some(name) = name {
            if let Some(index) = indices.clone().find(|&index| self.slots[index].has_name(name)) {
                return Ok(index);
            }
            if !self.settings().any_model {
                let names = self.names(indices);
                let message = format!("unknown model `{name}`; available: {names}");
                return Err(Refusal::new(Kind::UnknownModel, message).for_model(name));
            }
        }
        match (indices.next(), indices.next()) {
            (Some(only), None) => Ok(only),
            _ => self.resolve_by_task(tasks),
        }
    }

    /// The only model whose task is one of `tasks`.
    fn resolve_by_task(&self, tasks: &[Task]) -> Result<usize, Refusal> {
        let has_task = |&index: &usize| matches!(self.slots[index].task(), TaskStatus::Known(task) if tasks.contains(&task));
        let matching: Vec<usize> = (0..self.slots.len()).filter(has_task).collect();
        let pending = self.slots.iter().find(|slot| slot.task() == TaskStatus::Pending);
        match (matching.as_slice(), pending) {
            ([only], None) => Ok(*only),
            ([], None) => {
                let tasks: Vec<String> = tasks.iter().map(|task| format!("`{task}`")).collect();
                let names = self.names(0..self.slots.len());
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
                let names = self.names(matching.iter().copied());
                let message = format!(
                    "the request names no model, and several match: {names}\n\
                     hint: name one in `model`, `x-sconce-model` or the path `/models/NAME/…`"
                );
                Err(Refusal::new(Kind::UnknownModel, message))
            }
        }
    }

    /// The names of models for a message.
    fn names(&self, indices: impl Iterator<Item = usize>) -> String {
        indices.map(|index| format!("`{}`", self.slots[index].name)).collect::<Vec<_>>().join(", ")
    }

    /// Requests that a model is loaded, unless it is loaded, loading, or failed a moment ago.
    pub(crate) fn request_load(&self, index: usize) {
        if self.slots[index].request_load() {
            (self.send_load)(index);
        }
    }

    /// The slot called `name`.
    pub(crate) fn slot(&self, scope: Option<Scope>, name: &str) -> Result<&Arc<Slot>, Refusal> {
        self.resolve(scope, Some(name), &[]).map(|index| &self.slots[index])
    }

    /// The loaded model called `name`, or the only one with one of `tasks`. Requests a load if it is not loaded, and waits for
    /// it up to `wait`.
    pub(crate) async fn loaded(
        &self,
        scope: Option<Scope>,
        name: Option<&str>,
        tasks: &[Task],
        wait: Duration,
    ) -> Result<Arc<LoadedModel>, Refusal> {
        let index = self.resolve(scope, name, tasks)?;
        let slot = &self.slots[index];
        let mut phases = slot.phases();
        let began = tokio::time::Instant::now();
        loop {
            if let Some(loaded) = slot.acquire() {
                return Ok(loaded);
            }
            self.request_load(index);
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
        let rules = RouteRules { probes: &[], public: &[], dialect: |_| Dialect::Tei };
        let edge = Arc::new(Edge::new(settings.edge(), rules, SocketAddr::from(([127, 0, 0, 1], 0))));
        App::new(settings, edge, metrics, text_pool, slots, |_| {}, CancellationToken::new())
    }

    const EMBED: TaskStatus = TaskStatus::Known(Task::Embed);
    const RERANK: TaskStatus = TaskStatus::Known(Task::Rerank);

    /// The index of the slot, or the kind of the refusal.
    fn resolve(app: &App, scope: Option<usize>, name: Option<&str>, tasks: &[Task]) -> Result<usize, Kind> {
        app.resolve(scope.map(Scope), name, tasks).map_err(|refusal| refusal.kind)
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
