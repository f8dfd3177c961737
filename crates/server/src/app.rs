//! All that requests share: models by their names, what is counted, threads, and whether it is time to stop.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sconce::{Runtime, Task};
use tokio::sync::watch;

use crate::manager::Order;
use crate::memory_budget::MemoryBudget;
use crate::metrics::Metrics;
use crate::rate_limiter::RateLimiters;
use crate::refusal::{Kind, Refusal};
use crate::settings::Settings;
use crate::slot::{Ability, Host, Slot};
use crate::telemetry::Telemetry;
use crate::threads::Threads;

/// All that requests share.
pub(crate) struct App {
    settings: RwLock<Arc<Settings>>,
    pub(crate) metrics: Metrics,
    pub(crate) threads: Threads,
    pub(crate) slots: Vec<Arc<Slot>>,
    /// The runtimes of the models, each once.
    runtimes: Vec<Runtime>,
    /// Bytes that a prover may take that is about to start.
    pub(crate) reserved: AtomicU64,
    /// Tells the manager which slot is wanted.
    orders: Sender<Order>,
    stop: watch::Sender<bool>,
    /// What each key may still use.
    pub(crate) rate_limiters: RateLimiters,
    pub(crate) started: Instant,
    /// The address that it listens on.
    pub(crate) bound: SocketAddr,
    pub(crate) telemetry: Telemetry,
    stopping: AtomicBool,
    /// The memory of requests in flight.
    pub(crate) memory: Arc<MemoryBudget>,
}

/// The place of the model that the path of a request names: the request reaches no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope(pub(crate) usize);

impl App {
    pub(crate) fn new(
        settings: Settings,
        bound: SocketAddr,
        metrics: Metrics,
        threads: Threads,
        slots: Vec<Arc<Slot>>,
        orders: Sender<Order>,
        stop: watch::Sender<bool>,
    ) -> App {
        let memory = Arc::new(MemoryBudget::new(settings.in_flight_bytes()));
        let telemetry = Telemetry::new(&settings.telemetry);
        let (settings, rate_limiters) = (RwLock::new(Arc::new(settings)), RateLimiters::default());
        App {
            settings,
            metrics,
            threads,
            slots,
            runtimes: Vec::new(),
            reserved: AtomicU64::new(0),
            orders,
            stop,
            rate_limiters,
            telemetry,
            started: Instant::now(),
            bound,
            stopping: AtomicBool::new(false),
            memory,
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
        self.memory.set_limit(settings.in_flight_bytes());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }

    /// The same with the runtimes of its models, each of which has provers.
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

    /// From now on it is not ready.
    pub(crate) fn begin_shutdown(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
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
            let _ = self.orders.send(Order::Load(place));
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
            let waits = !slot.has_failed() && !self.is_stopping();
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
    use std::sync::mpsc::channel;

    use super::*;
    use crate::manager::When;

    fn app(any_model: bool, slots: &[(&str, Ability)]) -> App {
        let slot = |&(name, ability): &(&str, Ability)| {
            let slot = Slot::new(name.to_owned(), vec![format!("also {name}")], When::Demand, false);
            slot.learn(ability);
            Arc::new(slot)
        };
        let settings = Settings { any_model, ..Settings::default() };
        let threads = Threads::start(1, 1).expect("a thread");
        let metrics = Metrics::new().expect("metrics");
        let slots = slots.iter().map(slot).collect();
        let bound = SocketAddr::from(([127, 0, 0, 1], 0));
        App::new(settings, bound, metrics, threads, slots, channel().0, watch::Sender::new(false))
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
