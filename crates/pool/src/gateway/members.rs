//! The members of the pool as a gateway knows them: balancer, model names, and which workers are dead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sconce_http::refusal::{Kind, Refusal};
use sconce_registry::{Load, MemberMap, Registration, Watcher};
use tokio::sync::watch;

use super::hedging::Race;
use super::routes::Route;
use crate::balancer::{Balancer, Outcome, Ticket};
use crate::choose::{Choice, NoWorker, Request};
use crate::random::Random;
use crate::retry::Failure;

/// Minimum time between two updates. Heartbeats of many workers are taken together.
const UPDATE_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of model names in a message.
const MAX_LISTED: usize = 20;

/// The members of the pool.
pub(super) struct Members {
    pub(super) watcher: Watcher,
    balancer: Mutex<(Balancer, Random)>,
    names: RwLock<Arc<Names>>,
    /// Counts the changes of `names`.
    changes: watch::Sender<u64>,
}

/// The names of the models of a pool.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Models by their own name, with the tasks they have.
    models: BTreeMap<String, Vec<String>>,
    /// Other names.
    aliases: BTreeSet<String>,
    /// Names and aliases of models that a worker has loaded, or loads on demand by itself.
    served: BTreeSet<String>,
    /// The registrations that they come from.
    registrations: Vec<Arc<Registration>>,
}

impl Members {
    /// The members that `watcher` knows.
    pub(super) fn new(watcher: Watcher) -> Members {
        let balancer = Mutex::new((Balancer::default(), Random::from_entropy()));
        let members = Members { watcher, balancer, names: RwLock::default(), changes: watch::Sender::new(0) };
        members.update();
        members
    }

    /// Follows the changes of the map, until it never changes again.
    pub(super) async fn follow(&self) {
        let mut watcher = self.watcher.clone();
        while watcher.changed().await {
            self.update();
            tokio::time::sleep(UPDATE_INTERVAL).await;
        }
    }

    fn update(&self) {
        let registrations = self.watcher.read(|map| {
            self.balancer().0.update(map);
            registrations(map)
        });
        let known = self.names();
        let same = known.registrations.len() == registrations.len()
            && known.registrations.iter().zip(&registrations).all(|(a, b)| Arc::ptr_eq(a, b));
        if !same {
            *self.names.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Names::of(registrations));
            self.changes.send_modify(|count| *count += 1);
        }
    }

    fn balancer(&self) -> MutexGuard<'_, (Balancer, Random)> {
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of the models.
    pub(super) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes with the models that workers have.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether any worker is ready to get requests.
    pub(super) fn is_ready(&self) -> bool {
        self.balancer().0.is_ready()
    }

    /// Chooses a worker without sending to it.
    pub(super) fn choose(&self, request: &Request<'_>) -> Result<Choice, NoWorker> {
        let (balancer, random) = &mut *self.balancer();
        balancer.choose(request, Instant::now(), random)
    }

    /// Chooses a worker and counts the request as in flight.
    pub(super) fn start(self: &Arc<Self>, request: &Request<'_>) -> Result<(Choice, InFlight), NoWorker> {
        let (balancer, random) = &mut *self.balancer();
        let now = Instant::now();
        let choice = balancer.choose(request, now, random)?;
        let ticket = balancer.start(&choice, now).ok_or(NoWorker::NoneReady)?;
        Ok((choice, InFlight { members: Arc::clone(self), ticket: Some(ticket), silent: None, race: None }))
    }

    /// Calls `read` with the balancer.
    pub(super) fn with_balancer<T>(&self, read: impl FnOnce(&Balancer) -> T) -> T {
        read(&self.balancer().0)
    }
}

fn registrations(map: &MemberMap) -> Vec<Arc<Registration>> {
    map.iter().map(|member| Arc::clone(member.registration)).collect()
}

/// A request in flight. If it is dropped before it is finished, it counts as cancelled, or as a failure of a worker that
/// was silent for too long, or until a hedge was answered.
pub(super) struct InFlight {
    members: Arc<Members>,
    ticket: Option<Ticket>,
    /// Since when the worker has been silent, and the prediction.
    silent: Option<(Instant, Duration)>,
    /// The race with its hedge.
    race: Option<Race>,
}

impl InFlight {
    /// Begins to wait for an answer whose duration is predicted.
    pub(super) fn expect(&mut self, predicted: Duration, race: Race) {
        self.silent = Some((Instant::now(), predicted));
        self.race = Some(race);
    }

    /// Takes note of the start of the answer.
    pub(super) fn answered(&mut self) {
        self.silent = None;
    }

    /// Takes note that the answer is what was asked for, though its body has yet to come.
    pub(super) fn succeeds(&self) {
        if let Some(ticket) = &self.ticket {
            self.members.balancer().0.answered(ticket, Instant::now());
        }
    }

    /// Takes note that the answer is passed on: attempts that began before are overtaken.
    pub(super) fn answered_first(&self) {
        if let Some(race) = &self.race {
            race.end();
        }
    }

    /// Takes the outcome.
    pub(super) fn finish(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    /// Takes the load that an answer reports.
    pub(super) fn observe_load(&self, worker_id: &str, requests: u32, tokens: u64) {
        let known = self.members.watcher.read(|map| Some(map.get(worker_id)?.heartbeat.load.latency));
        if let (Some(ticket), Some(latency)) = (&self.ticket, known) {
            self.members.balancer().0.observe_load(ticket, Load { requests, tokens, latency });
        }
    }

    /// Takes the outcome of an answer whose body has yet to be passed on.
    pub(super) fn settled(mut self, outcome: Outcome) -> InFlight {
        self.end(outcome);
        self
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(ticket) = self.ticket.take() {
            self.members.balancer().0.finish(ticket, outcome, Instant::now());
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let is_overtaken = self.race.as_ref().is_some_and(Race::is_overtaken);
        let outcome = match self.silent {
            None => Outcome::Cancelled,
            Some(_) if is_overtaken => Outcome::Failure,
            Some((since, predicted)) => Failure::TimedOut { waited: since.elapsed(), predicted }.outcome(),
        };
        self.end(outcome);
    }
}

impl Names {
    fn of(registrations: Vec<Arc<Registration>>) -> Names {
        let mut names = Names::default();
        for model in registrations.iter().flat_map(|registration| &registration.models) {
            let tasks = names.models.entry(model.model.clone()).or_default();
            if !tasks.contains(&model.task) {
                tasks.push(model.task.clone());
            }
            names.aliases.extend(model.aliases.iter().cloned());
            if !model.managed || model.placements.iter().any(|placement| placement.active) {
                names.served.extend(model.aliases.iter().chain([&model.model]).cloned());
            }
        }
        names.registrations = registrations;
        names
    }

    /// Whether no worker has registered a model.
    pub(super) fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// All names and aliases.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.models.keys().chain(&self.aliases).map(String::as_str)
    }

    /// Whether a model has this name or alias.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.models.contains_key(name) || self.aliases.contains(name)
    }

    /// Whether no worker serves the model, though the pool may load it.
    pub(super) fn is_cold(&self, name: &str) -> bool {
        !self.served.contains(name)
    }

    /// The only model that can answer on a route.
    pub(super) fn only(&self, route: &Route) -> Result<&str, Refusal> {
        let admitted = |tasks: &Vec<String>| tasks.iter().any(|task| route.admits(task));
        let mut matching = self.models.iter().filter(|(_, tasks)| admitted(tasks)).map(|(name, _)| name);
        match (matching.next(), matching.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => {
                let tasks: Vec<String> = route.tasks.iter().map(|task| format!("`{task}`")).collect();
                let message = format!(
                    "no model of the pool has the task {}; available: {}",
                    tasks.join(" or "),
                    self.list()
                );
                Err(Refusal::new(Kind::UnknownModel, message))
            }
            (Some(_), Some(_)) => {
                let message = format!(
                    "the request names no model, and several match: {}\n\
                     hint: name one in `model`, `x-sconce-model` or the path `/models/NAME/…`",
                    self.list()
                );
                Err(Refusal::new(Kind::UnknownModel, message))
            }
        }
    }

    /// The names of the models for a message.
    pub(super) fn list(&self) -> String {
        let names: Vec<String> =
            self.models.keys().take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
        let more = if self.models.len() > MAX_LISTED { ", …" } else { "" };
        format!("{}{more}", names.join(", "))
    }
}
