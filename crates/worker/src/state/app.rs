//! State that all requests share: settings, models by name, metrics, text threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sconce::{Runtime, Task};
use sconce_http::Edge;
use sconce_http::refusal::{Kind, Refusal};
use tokio::sync::watch;

use crate::schedule::text_pool::TextPool;
use crate::settings::Settings;
use crate::state::metrics::Metrics;
use crate::state::slot::{Ability, Host, Slot};

/// State that all requests share.
pub(crate) struct App {
    settings: RwLock<Arc<Settings>>,
    /// The HTTP edge: keys, limits, telemetry, shutdown.
    pub(crate) edge: Arc<Edge>,
    pub(crate) metrics: Metrics,
    pub(crate) text_pool: TextPool,
    pub(crate) slots: Vec<Arc<Slot>>,
    /// The runtimes of the models, without duplicates.
    runtimes: Vec<Runtime>,
    /// Bytes reserved for a prover that is about to start.
    pub(crate) reserved: AtomicU64,
    /// Asks the model manager to load the model of a slot.
    request_load: Box<dyn Fn(usize) + Send + Sync>,
    stop: watch::Sender<bool>,
    pub(crate) started: Instant,
}

/// The place of the model that the path of a request names: the request reaches no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope(pub(crate) usize);

impl App {
    pub(crate) fn new(
        settings: Settings,
        edge: Arc<Edge>,
        metrics: Metrics,
        text_pool: TextPool,
        slots: Vec<Arc<Slot>>,
        request_load: impl Fn(usize) + Send + Sync + 'static,
        stop: watch::Sender<bool>,
    ) -> App {
        App {
            settings: RwLock::new(Arc::new(settings)),
            edge,
            metrics,
            text_pool,
            slots,
            runtimes: Vec::new(),
            reserved: AtomicU64::new(0),
            request_load: Box::new(request_load),
            stop,
            started: Instant::now(),
        }
    }

    /// The settings as of now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies other settings. Threads and the maximum number of connections stay.
    pub(crate) fn reload(&self, settings: Settings) {
        for host in self.slots.iter().filter_map(|slot| slot.host()) {
            host.queue.limit(settings.queue_seconds);
        }
        self.edge.reload(settings.edge());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// The same with the runtimes of its models, whose provers it accounts for.
    pub(crate) fn with_runtimes(self, runtimes: Vec<Runtime>) -> App {
        App { runtimes, ..self }
    }

    /// Bytes of main memory that prover children have.
    pub(crate) fn provers(&self) -> u64 {
        self.runtimes.iter().map(Runtime::prover_resident).sum()
    }

    /// Bytes of main memory that prover children have or are about to take.
    pub(crate) fn proving(&self) -> u64 {
        self.provers().max(self.reserved.load(Ordering::Relaxed))
    }

    /// Bytes of main memory that this process and its prover children have or are about to take.
    pub(crate) fn used(&self) -> u64 {
        sconce::resident().unwrap_or(0) + self.proving()
    }

    /// Has the server stop as a signal does.
    pub(crate) fn drain(&self) {
        let _ = self.stop.send(true);
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.edge.is_shutting_down()
    }

    /// Closes all queues: jobs that wait are dropped.
    pub(crate) fn close_queues(&self) {
        for host in self.slots.iter().filter_map(|slot| slot.host()) {
            host.queue.close();
        }
    }

    /// The places of the models that a request may reach: of one where its path names one, else of all.
    pub(crate) fn places(&self, scope: Option<Scope>) -> Range<usize> {
        scope.map_or(0..self.slots.len(), |Scope(at)| at..at + 1)
    }

    /// The place of the model of this name. Where none is named, of the only one, or of the only one whose task is
    /// one of `tasks`.
    fn place(&self, scope: Option<Scope>, name: Option<&str>, tasks: &[Task]) -> Result<usize, Refusal> {
        let mut places = self.places(scope);
        if let Some(name) = name {
            if let Some(place) = places.clone().find(|&place| self.slots[place].is_called(name)) {
                return Ok(place);
            }
            if !self.settings().any_model {
                let there = self.listed(places);
                let message = format!("no model is called `{name}` here; there is: {there}");
                return Err(Refusal::new(Kind::UnknownModel, message).of(name));
            }
        }
        match (places.next(), places.next()) {
            (Some(only), None) => Ok(only),
            _ => self.able(tasks),
        }
    }

    /// The only model whose task is one of `tasks`, by the models' cards.
    fn able(&self, tasks: &[Task]) -> Result<usize, Refusal> {
        let is_able = |&place: &usize| matches!(self.slots[place].ability(), Ability::Task(task) if tasks.contains(&task));
        let able: Vec<usize> = (0..self.slots.len()).filter(is_able).collect();
        let unread = self.slots.iter().find(|slot| slot.ability() == Ability::Unread);
        match (able.as_slice(), unread) {
            ([only], None) => Ok(*only),
            ([], None) => {
                let wanted: Vec<String> = tasks.iter().map(|task| format!("`{task}`")).collect();
                let there = self.listed(0..self.slots.len());
                let message =
                    format!("no model here has the task {}; there is: {there}", wanted.join(" or "));
                Err(Refusal::new(Kind::UnknownModel, message))
            }
            ([] | [_], Some(unread)) => {
                let message = format!(
                    "several models are served, and the task of `{}` is not known yet: name a model in `model`, \
                     `x-sconce-model` or the path `/models/NAME/…`",
                    unread.name
                );
                Err(Refusal::new(Kind::NotReady, message))
            }
            ([_, _, ..], _) => {
                let there = self.listed(able.iter().copied());
                let message = format!(
                    "several models are served: name one in `model`, `x-sconce-model` or the path \
                     `/models/NAME/…`: {there}"
                );
                Err(Refusal::new(Kind::UnknownModel, message))
            }
        }
    }

    /// The names of models, to be chosen from.
    fn listed(&self, places: impl Iterator<Item = usize>) -> String {
        places.map(|place| format!("`{}`", self.slots[place].name)).collect::<Vec<_>>().join(", ")
    }

    /// Has a model loaded, unless it is, or will be, or could not be a moment ago.
    pub(crate) fn want(&self, place: usize) {
        if self.slots[place].want() {
            (self.request_load)(place);
        }
    }

    /// The slot of this name.
    pub(crate) fn slot(&self, scope: Option<Scope>, name: &str) -> Result<&Arc<Slot>, Refusal> {
        self.place(scope, Some(name), &[]).map(|place| &self.slots[place])
    }

    /// The open model of this name, or the one that can do one of `tasks`, waiting at most so long until it is open;
    /// one that is not loaded is asked for.
    pub(crate) async fn host(
        &self,
        scope: Option<Scope>,
        name: Option<&str>,
        tasks: &[Task],
        wait: Duration,
    ) -> Result<Arc<Host>, Refusal> {
        let place = self.place(scope, name, tasks)?;
        let slot = &self.slots[place];
        let mut phases = slot.phases();
        let began = tokio::time::Instant::now();
        loop {
            if let Some(host) = slot.visit() {
                return Ok(host);
            }
            self.want(place);
            let waits = !slot.has_failed() && !self.is_shutting_down();
            if !waits || tokio::time::timeout_at(began + wait, phases.changed()).await.is_err() {
                let took = slot.memory().map_or(1.0, |memory| memory.load_seconds);
                let message = format!("`{}` is not ready: {}", slot.name, slot.phase().reason());
                return Err(Refusal::new(Kind::NotReady, message).after(took).of(&slot.name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use sconce_http::{Dialect, RouteRules};

    use super::*;
    use crate::state::slot::When;

    fn app(any_model: bool, slots: &[(&str, Ability)]) -> App {
        let slot = |&(name, ability): &(&str, Ability)| {
            let slot = Slot::new(name.to_owned(), vec![format!("also {name}")], When::Demand, false);
            slot.learn(ability);
            Arc::new(slot)
        };
        let settings = Settings { any_model, ..Settings::default() };
        let text_pool = TextPool::start(1, 1).expect("a thread");
        let metrics = Metrics::new().expect("metrics");
        let slots = slots.iter().map(slot).collect();
        let rules = RouteRules { probes: &[], public: &[], dialect: |_| Dialect::Tei };
        let edge = Arc::new(Edge::new(settings.edge(), rules, SocketAddr::from(([127, 0, 0, 1], 0))));
        App::new(settings, edge, metrics, text_pool, slots, |_| {}, watch::Sender::new(false))
    }

    const EMBED: Ability = Ability::Task(Task::Embed);
    const RERANK: Ability = Ability::Task(Task::Rerank);

    /// The place, or what it is refused as.
    fn place(app: &App, scope: Option<usize>, name: Option<&str>, tasks: &[Task]) -> Result<usize, Kind> {
        app.place(scope.map(Scope), name, tasks).map_err(|refusal| refusal.kind)
    }

    #[test]
    fn without_a_name_the_only_model_with_the_task_is_chosen() {
        let two = app(false, &[("a", EMBED), ("b", RERANK)]);
        assert_eq!(place(&two, None, None, &[Task::Embed]), Ok(0));
        assert_eq!(place(&two, None, None, &[Task::Rerank, Task::Tokens]), Ok(1));
        assert_eq!(place(&two, None, None, &[Task::Sparse]), Err(Kind::UnknownModel));
        assert_eq!(place(&two, None, None, &[Task::Embed, Task::Rerank]), Err(Kind::UnknownModel), "two can");
        let alone = app(false, &[("a", EMBED)]);
        assert_eq!(place(&alone, None, None, &[Task::Rerank]), Ok(0), "the model itself says what it can't");
    }

    #[test]
    fn a_card_that_is_not_read_yet_could_be_of_the_task_and_one_that_can_not_be_read_is_not() {
        let tasks = [Task::Embed];
        let app_with = |others: &[(&str, Ability)]| app(false, &[&[("a", EMBED)], others].concat());
        assert_eq!(place(&app_with(&[("b", Ability::Unread)]), None, None, &tasks), Err(Kind::NotReady));
        assert_eq!(place(&app_with(&[("b", Ability::Unreadable)]), None, None, &tasks), Ok(0));
        let three = app_with(&[("b", EMBED), ("c", Ability::Unread)]);
        assert_eq!(place(&three, None, None, &tasks), Err(Kind::UnknownModel), "there are two already");
        let none = app(false, &[("a", RERANK), ("b", Ability::Unread)]);
        assert_eq!(place(&none, None, None, &tasks), Err(Kind::NotReady));
        assert_eq!(place(&none, None, Some("b"), &tasks), Ok(1), "a name is enough");
    }

    #[test]
    fn a_name_is_looked_for_where_the_path_allows() {
        let two = app(false, &[("a", EMBED), ("b", RERANK)]);
        assert_eq!(place(&two, None, Some("also b"), &[Task::Embed]), Ok(1));
        assert_eq!(place(&two, Some(1), None, &[Task::Embed]), Ok(1));
        assert_eq!(place(&two, Some(1), Some("b"), &[Task::Embed]), Ok(1));
        assert_eq!(place(&two, Some(1), Some("a"), &[Task::Embed]), Err(Kind::UnknownModel));
        assert_eq!(place(&two, None, Some("c"), &[Task::Embed]), Err(Kind::UnknownModel));
        let any = app(true, &[("a", EMBED), ("b", RERANK)]);
        assert_eq!(place(&any, None, Some("c"), &[Task::Rerank]), Ok(1));
        assert_eq!(place(&any, Some(0), Some("c"), &[Task::Rerank]), Ok(0));
        assert_eq!(place(&any, None, Some("b"), &[Task::Embed]), Ok(1), "a name that is known counts");
    }
}
