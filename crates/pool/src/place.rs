//! Which worker loads or unloads which model, from the desired state and the bids of the workers.
//!
//! A replica that runs is never moved. The worker alone arbitrates its memory: it may refuse a load that another
//! manager was faster to fill.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::class::{NumericsClass, Pin};

/// What a pool should run.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Name of the model in requests.
    pub model: String,
    /// Where its files come from.
    pub source: String,
    /// Minimum number of replicas.
    pub min_replicas: u32,
    /// Maximum number of replicas.
    pub max_replicas: u32,
    /// Replicas that the requests call for; 0 if there are none.
    pub demand: u32,
    /// The numerics class that a replica must have to count.
    pub pin: Option<Pin>,
}

impl Desired {
    /// Number of replicas to reach.
    pub(crate) fn target(&self) -> u32 {
        self.demand.max(self.min_replicas).min(self.max_replicas)
    }

    /// Whether a class may be the desired one. That of a model that was never loaded on a worker is not known.
    pub(crate) fn admits(&self, class: Option<&NumericsClass>) -> bool {
        self.pin.as_ref().zip(class).is_none_or(|(pin, class)| pin.admits(class))
    }
}

/// The offer of a worker to load a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Bid {
    /// Id of the worker.
    pub worker: String,
    /// Name of the model.
    pub model: String,
    /// Memory that the model takes.
    pub bytes: u64,
    /// Memory that is free on its device.
    pub free_bytes: u64,
    /// Expected tokens per second.
    pub rate: f64,
    /// Expected time to load in seconds.
    pub load_seconds: f64,
    /// The class that it would have, if known.
    pub class: Option<NumericsClass>,
    /// Codes of the reasons why it can't be loaded.
    pub obstacles: Vec<String>,
}

/// A replica that runs or is being loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Id of the worker.
    pub worker: String,
    /// Name of the model.
    pub model: String,
    /// Its class, if known. It counts while its class is not known.
    pub class: Option<NumericsClass>,
    /// Measured tokens per second; 0 while unknown.
    pub rate: f64,
    /// Whether the pool loaded it. Others are never unloaded.
    pub is_managed: bool,
}

/// A change of what a worker runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Unload a model.
    Unload {
        /// Id of the worker.
        worker: String,
        /// Name of the model.
        model: String,
    },
    /// Load a model.
    Load {
        /// Id of the worker.
        worker: String,
        /// Name of the model.
        model: String,
        /// Where its files come from.
        source: String,
    },
}

/// The actions that bring the replicas to the desired state. The order of the inputs does not matter.
///
/// Excess replicas and replicas of models that are not desired are unloaded, the slowest first. Missing ones are loaded
/// where the bid fits and has the highest rate: models without a replica before others, and among those, large models
/// before small ones.
pub fn place(bids: &[Bid], replicas: &[Replica], desired: &[Desired]) -> Vec<Action> {
    let desired: BTreeMap<&str, &Desired> = desired.iter().map(|one| (one.model.as_str(), one)).collect();
    let mut actions = unloads(replicas, &desired);
    actions.extend(loads(bids, replicas, &desired));
    actions
}

fn unloads(replicas: &[Replica], desired: &BTreeMap<&str, &Desired>) -> Vec<Action> {
    let mut by_model: BTreeMap<&str, Vec<&Replica>> = BTreeMap::new();
    for replica in replicas {
        by_model.entry(&replica.model).or_default().push(replica);
    }
    let mut actions = Vec::new();
    for (model, mut replicas) in by_model {
        let max = desired.get(model).map_or(0, |desired| desired.max_replicas as usize);
        // Those that don't count go first, then the slowest.
        let counts =
            |replica: &Replica| desired.get(model).is_some_and(|one| one.admits(replica.class.as_ref()));
        replicas.sort_by(|a, b| {
            let order = counts(a).cmp(&counts(b)).then(a.rate.total_cmp(&b.rate));
            order.then_with(|| a.worker.cmp(&b.worker))
        });
        let excess = replicas.len().saturating_sub(max);
        let managed = replicas.into_iter().filter(|replica| replica.is_managed);
        actions.extend(
            managed
                .take(excess)
                .map(|one| Action::Unload { worker: one.worker.clone(), model: model.to_owned() }),
        );
    }
    actions
}

/// A model that lacks replicas.
struct Lack<'a> {
    desired: &'a Desired,
    /// Number of replicas that count.
    running: u32,
    /// Largest size in the bids.
    bytes: u64,
}

impl Lack<'_> {
    /// The more urgent one first.
    fn cmp(&self, other: &Lack<'_>) -> Ordering {
        let urgency = |lack: &Lack<'_>| (lack.running > 0, u64::MAX - lack.bytes);
        urgency(self).cmp(&urgency(other)).then_with(|| self.desired.model.cmp(&other.desired.model))
    }
}

fn loads(bids: &[Bid], replicas: &[Replica], desired: &BTreeMap<&str, &Desired>) -> Vec<Action> {
    let mut actions = Vec::new();
    // Bytes that this round assigns to each worker.
    let mut assigned: BTreeMap<&str, u64> = BTreeMap::new();
    let mut running: BTreeSet<(&str, &str)> =
        replicas.iter().map(|replica| (replica.worker.as_str(), replica.model.as_str())).collect();
    let mut lacks: Vec<Lack<'_>> = desired
        .values()
        .map(|desired| {
            let counts = |one: &&Replica| one.model == desired.model && desired.admits(one.class.as_ref());
            let running = replicas.iter().filter(counts).count() as u32;
            let bytes = bids.iter().filter(|bid| bid.model == desired.model).map(|bid| bid.bytes).max();
            Lack { desired, running, bytes: bytes.unwrap_or(0) }
        })
        .filter(|lack| lack.running < lack.desired.target())
        .collect();
    while !lacks.is_empty() {
        lacks.sort_by(Lack::cmp);
        // Every model gets one replica before any gets a second.
        let mut remaining = Vec::new();
        for mut lack in lacks {
            let fits = |bid: &&Bid| {
                let used = assigned.get(bid.worker.as_str()).copied().unwrap_or(0);
                bid.model == lack.desired.model
                    && bid.obstacles.is_empty()
                    && bid.bytes.saturating_add(used) <= bid.free_bytes
                    && lack.desired.admits(bid.class.as_ref())
                    && !running.contains(&(bid.worker.as_str(), bid.model.as_str()))
            };
            // A class that is known to be the desired one is better than one that is not known.
            let is_unknown = |bid: &Bid| lack.desired.pin.is_some() && bid.class.is_none();
            let best = |a: &&Bid, b: &&Bid| is_unknown(a).cmp(&is_unknown(b)).then_with(|| better(a, b));
            let Some(bid) = bids.iter().filter(fits).min_by(best) else { continue };
            *assigned.entry(&bid.worker).or_default() += bid.bytes;
            running.insert((&bid.worker, &bid.model));
            actions.push(Action::Load {
                worker: bid.worker.clone(),
                model: bid.model.clone(),
                source: lack.desired.source.clone(),
            });
            lack.running += 1;
            if lack.running < lack.desired.target() {
                remaining.push(lack);
            }
        }
        lacks = remaining;
    }
    actions
}

/// The better of two bids for the same model is less.
fn better(a: &Bid, b: &Bid) -> Ordering {
    let order = b.rate.total_cmp(&a.rate).then(a.load_seconds.total_cmp(&b.load_seconds));
    order.then(b.free_bytes.cmp(&a.free_bytes)).then_with(|| a.worker.cmp(&b.worker))
}

#[cfg(test)]
mod tests;
