//! What a manager knows beside the members and the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sconce_registry::{DesiredModel, DesiredModels, MemberMap};

use super::demand::Demand;
use super::fit::Offer;
use super::members::{Held, WorkerView, held};
use super::offers::Question;
use super::retries::Retries;
use super::space::{Usage, make_space};
use crate::class::{NumericsClass, Pin};
use crate::place::{Action, Desired, Replica, place};
use crate::vanish::VanishGuard;

/// Time in which a worker writes its registration after a load or an unload.
const SETTLE: Duration = Duration::from_secs(3);

/// Worker and model.
type Key = (String, String);

/// What a manager knows.
#[derive(Default)]
pub(super) struct State {
    pub(super) demand: Demand,
    pub(super) retries: Retries,
    pub(super) guard: VanishGuard,
    /// Loads of this manager.
    loads: BTreeMap<Key, LoadProgress>,
    /// Unloads of this manager, and when they began.
    unloads: BTreeMap<Key, Instant>,
    /// Bytes of the replicas that this manager loaded.
    sizes: BTreeMap<Key, u64>,
    /// Classes that models had.
    classes: BTreeMap<Key, NumericsClass>,
    /// The members, with those that vanished a moment ago.
    workers: BTreeMap<String, WorkerView>,
    /// Ids of the members.
    members: BTreeSet<String>,
    /// The desired models of the last round.
    desired: DesiredModels,
}

#[derive(Debug)]
struct LoadProgress {
    bytes: u64,
    /// When it succeeded.
    done: Option<Instant>,
}

/// Replicas, and what else workers hold.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) replicas: Vec<Replica>,
    /// How many replicas of each model are loaded, and how many are being loaded.
    pub(super) counts: BTreeMap<String, (u32, u32)>,
    /// Models of another source, by worker.
    other_sources: Vec<Key>,
}

impl View {
    /// Replicas of a model that are loaded, and that are being loaded.
    pub(super) fn count(&self, model: &str) -> (u32, u32) {
        self.counts.get(model).copied().unwrap_or_default()
    }

    /// Whether a model has fewer replicas than it should.
    fn lacks(&self, desired: &Desired) -> bool {
        let counts =
            |replica: &&Replica| replica.model == desired.model && desired.admits(replica.class.as_ref());
        (self.replicas.iter().filter(counts).count() as u32) < desired.target()
    }
}

impl State {
    /// Takes the members of a map.
    pub(super) fn update(&mut self, map: &MemberMap, now: Instant) {
        self.guard.update(map, now);
        let members: BTreeMap<String, WorkerView> =
            WorkerView::of(map).into_iter().map(|worker| (worker.id.clone(), worker)).collect();
        self.members = members.keys().cloned().collect();
        let State { workers, guard, .. } = self;
        workers.retain(|id, _| guard.has_just_vanished(id, now));
        workers.extend(members);
        let is_listed = |(worker, model): &Key| {
            workers.get(worker).is_some_and(|known| known.models.iter().any(|record| record.model == *model))
        };
        self.loads.retain(|key, load| {
            !load.done.is_some_and(|done| is_listed(key) || now.saturating_duration_since(done) > SETTLE)
        });
        self.unloads.retain(|key, began| is_listed(key) && now.saturating_duration_since(*began) < SETTLE);
        self.sizes.retain(|(worker, _), _| workers.contains_key(worker));
        self.classes.retain(|(worker, _), _| workers.contains_key(worker));
    }

    /// Takes the desired models: forgets those that are not desired any more, and why others could not be loaded if they
    /// have changed.
    pub(super) fn set_desired(&mut self, desired: &DesiredModels) {
        for (model, one) in desired {
            if self.desired.get(model).is_some_and(|known| known != one) {
                self.retries.forget(model);
            }
        }
        self.desired.clone_from(desired);
        self.demand.retain(|model| desired.contains_key(model));
        let workers = &self.workers;
        self.retries.retain(|worker, model| workers.contains_key(worker) && desired.contains_key(model));
    }

    /// The desired models with the demand for them.
    pub(super) fn desired(&self, models: &DesiredModels, now: Instant) -> Vec<Desired> {
        let desired = |one: &DesiredModel| Desired {
            model: one.model.clone(),
            source: one.source.clone(),
            min_replicas: one.min_replicas,
            max_replicas: one.max_replicas,
            demand: self.demand.replicas(&one.model, now),
            pin: one
                .class
                .as_ref()
                .and_then(|class| class.parse().ok())
                .map(|class| Pin { class, allow_tighter: false }),
        };
        models.values().map(|one| desired(one)).collect()
    }

    /// What the workers hold.
    pub(super) fn view(&mut self, models: &DesiredModels) -> View {
        let desired: Vec<DesiredModel> = models.values().map(|one| DesiredModel::clone(one)).collect();
        let mut view = View::default();
        let mut seen = BTreeSet::new();
        for worker in self.workers.values().filter(|worker| worker.stays()) {
            for one in held(worker, &desired) {
                let Held::Replica { replica, is_loaded } = one else {
                    let Held::OtherSource { model } = one else { continue };
                    view.other_sources.push((worker.id.clone(), model));
                    continue;
                };
                let key = (worker.id.clone(), replica.model.clone());
                if let Some(class) = &replica.class {
                    self.classes.insert(key.clone(), class.clone());
                }
                seen.insert(key);
                let count = view.counts.entry(replica.model.clone()).or_default();
                if is_loaded {
                    count.0 += 1;
                } else {
                    count.1 += u32::from(replica.is_managed);
                }
                view.replicas.push(replica);
            }
        }
        // Loads that the workers have not registered yet.
        for (worker, model) in self.loads.keys().filter(|key| !seen.contains(*key)) {
            view.counts.entry(model.clone()).or_default().1 += 1;
            let (worker, model) = (worker.clone(), model.clone());
            view.replicas.push(Replica { worker, model, class: None, rate: 0.0, is_managed: true });
        }
        view
    }

    /// The questions whose answers placement needs: of models that lack replicas, to workers that may load them.
    pub(super) fn questions(&self, view: &View, desired: &[Desired], now: Instant) -> Vec<Question> {
        let mut questions = Vec::new();
        for one in desired.iter().filter(|one| view.lacks(one)) {
            for worker in self.workers.values() {
                let key = (worker.id.clone(), one.model.clone());
                let has_it = |replica: &Replica| replica.worker == worker.id && replica.model == one.model;
                if !self.members.contains(&worker.id)
                    || !worker.takes_models()
                    || view.replicas.iter().any(has_it)
                    || self.unloads.contains_key(&key)
                    || !self.retries.is_due(&worker.id, &one.model, worker.version, now)
                {
                    continue;
                }
                let loads =
                    self.loads.iter().filter(|((id, _), load)| *id == worker.id && load.done.is_none());
                questions.push(Question {
                    worker: worker.id.clone(),
                    url: worker.url.clone(),
                    version: worker.version,
                    model: one.model.clone(),
                    source: one.source.clone(),
                    reserved: loads.map(|(_, load)| load.bytes).sum(),
                    class: self.classes.get(&key).cloned(),
                });
            }
        }
        questions
    }

    /// Decides by the answers.
    pub(super) fn decide(
        &mut self,
        answers: Vec<(Question, Result<Offer, String>)>,
        view: &View,
        desired: &[Desired],
        now: Instant,
    ) -> Vec<Action> {
        let mut offers = Vec::new();
        for (question, answer) in answers {
            let Question { worker, model, version, .. } = &question;
            let refusal = match &answer {
                Err(reason) => Some(reason.clone()),
                Ok(offer) if !offer.bid.obstacles.is_empty() => Some(offer.bid.obstacles.join(", ")),
                Ok(offer) if !offer.fits() => Some(format!(
                    "{} MiB are needed, {} are free",
                    mib(offer.bid.bytes),
                    mib(offer.bid.free_bytes)
                )),
                Ok(_) => None,
            };
            match refusal {
                Some(reason) => self.retries.refused(worker, model, *version, reason, now),
                None => self.retries.bid(worker, model),
            }
            offers.extend(answer.ok());
        }
        let bids: Vec<_> = offers.iter().map(|offer| offer.bid.clone()).collect();
        let mut actions = place(&bids, &view.replicas, desired);
        for action in &actions {
            if let Action::Load { worker, model, .. } = action
                && let Some(bid) = bids.iter().find(|bid| bid.worker == *worker && bid.model == *model)
            {
                self.sizes.insert((worker.clone(), model.clone()), bid.bytes);
            }
        }
        let other_sources = view.other_sources.iter().cloned();
        actions.extend(other_sources.map(|(worker, model)| Action::Unload { worker, model }));
        if self.unloads.is_empty() && actions.is_empty() {
            actions.extend(make_space(&offers, &view.replicas, desired, self));
        }
        actions.retain(|action| self.begins(action));
        actions
    }

    /// Whether an action is to be begun: of a member, and not in progress.
    fn begins(&self, action: &Action) -> bool {
        let (Action::Load { worker, model, .. } | Action::Unload { worker, model }) = action;
        let key = (worker.clone(), model.clone());
        let is_load = matches!(action, Action::Load { .. });
        let in_progress =
            if is_load { self.loads.contains_key(&key) } else { self.unloads.contains_key(&key) };
        self.members.contains(worker) && !in_progress
    }

    /// Takes note of an action that begins. Returns the URL of its worker.
    pub(super) fn begin(&mut self, action: &Action, now: Instant) -> Option<String> {
        let (Action::Load { worker, model, .. } | Action::Unload { worker, model }) = action;
        let key = (worker.clone(), model.clone());
        match action {
            Action::Load { .. } => {
                let bytes = self.sizes.get(&key).copied().unwrap_or(0);
                self.loads.insert(key, LoadProgress { bytes, done: None });
            }
            Action::Unload { .. } => drop(self.unloads.insert(key, now)),
        }
        self.workers.get(worker).map(|worker| worker.url.clone())
    }

    /// Takes note of a load that ended.
    pub(super) fn loaded(&mut self, worker: &str, model: &str, outcome: &Result<(), String>, now: Instant) {
        let key = (worker.to_owned(), model.to_owned());
        match outcome {
            Ok(()) => {
                if let Some(load) = self.loads.get_mut(&key) {
                    load.done = Some(now);
                }
                self.retries.loaded(worker, model);
            }
            Err(reason) => {
                self.loads.remove(&key);
                self.sizes.remove(&key);
                self.retries.failed(worker, model, reason.clone(), now);
            }
        }
    }

    /// Whether a load of a model is in progress.
    pub(super) fn is_loading(&self, model: &str) -> bool {
        self.loads.iter().any(|((_, loading), load)| loading == model && load.done.is_none())
    }

    /// Why a model that lacks replicas can be loaded nowhere now, and the time until the next attempt.
    pub(super) fn problem(&self, view: &View, desired: &Desired, now: Instant) -> Option<(String, Duration)> {
        if !view.lacks(desired) {
            return None;
        }
        if !self.workers.values().any(WorkerView::takes_models) {
            return Some(("no worker of the pool is ready".to_owned(), Duration::from_secs(1)));
        }
        self.retries.reason(&desired.model, now)
    }
}

impl Usage for State {
    fn bytes(&self, worker: &str, model: &str) -> Option<u64> {
        self.sizes.get(&(worker.to_owned(), model.to_owned())).copied()
    }

    fn last_used(&self, model: &str) -> Option<Instant> {
        self.demand.last_used(model)
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
