//! Which workers serve a model name, with prefix sums of their rates for weighted draws.

use std::collections::HashMap;

use sconce_registry::{ModelRecord, PlacementRecord, Rates};

use crate::class::{NumericsClass, Pin};
use crate::size::SizeClass;
use crate::workers::Workers;

/// The rate of all workers while none is measured, in tokens per second.
const DEFAULT_RATE: f64 = 1000.0;

/// The groups of workers by model name and alias.
#[derive(Debug, Default)]
pub(crate) struct Index {
    names: HashMap<Box<str>, Vec<Group>>,
}

/// Ready workers that serve a name with the same task and numerics.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) task: Box<str>,
    /// Whether the model is loaded.
    pub(crate) is_loaded: bool,
    /// Classes that an answer may have; empty if one is not known.
    classes: Vec<NumericsClass>,
    slots: Vec<u32>,
    /// For each size class, the sum of the rates up to and including each worker.
    sums: [Vec<f64>; 3],
}

impl Index {
    /// An index of all workers. Workers that are not ready only contribute names.
    pub(crate) fn build(workers: &Workers) -> Index {
        let mut names: HashMap<Box<str>, Vec<Group>> = HashMap::new();
        for (slot, worker) in workers.iter() {
            for model in &worker.registration.models {
                let (is_loaded, classes) = numerics(model);
                // A repeated alias counts once.
                let aliases = model.aliases.iter().enumerate();
                let aliases = aliases
                    .filter(|(at, alias)| **alias != model.model && !model.aliases[..*at].contains(alias));
                for name in std::iter::once(&model.model).chain(aliases.map(|(_, alias)| alias)) {
                    if !names.contains_key(name.as_str()) {
                        names.insert(name.as_str().into(), Vec::new());
                    }
                    let Some(groups) = names.get_mut(name.as_str()) else { continue };
                    let group = Index::group(groups, &model.task, is_loaded, &classes);
                    if worker.is_ready() && group.slots.last() != Some(&slot) {
                        group.slots.push(slot);
                    }
                }
            }
        }
        let mut index = Index { names };
        index.weigh(workers);
        index
    }

    fn group<'a>(
        groups: &'a mut Vec<Group>,
        task: &str,
        is_loaded: bool,
        classes: &[NumericsClass],
    ) -> &'a mut Group {
        let same =
            |group: &Group| *group.task == *task && group.is_loaded == is_loaded && group.classes == classes;
        let at = groups.iter().position(same).unwrap_or_else(|| {
            let (classes, sums) = (classes.to_vec(), [const { Vec::new() }; 3]);
            groups.push(Group { task: task.into(), is_loaded, classes, slots: Vec::new(), sums });
            groups.len() - 1
        });
        &mut groups[at]
    }

    /// Takes the rates of the workers' last heartbeats.
    pub(crate) fn weigh(&mut self, workers: &Workers) {
        let mut known = Vec::new();
        for group in self.names.values_mut().flatten() {
            for size in SizeClass::ALL {
                group.weigh(size, workers, &mut known);
            }
        }
    }

    /// The groups of a model name or alias.
    pub(crate) fn groups(&self, name: &str) -> Option<&[Group]> {
        self.names.get(name).map(Vec::as_slice)
    }
}

impl Group {
    fn weigh(&mut self, size: SizeClass, workers: &Workers, known: &mut Vec<f64>) {
        let rates = self
            .slots
            .iter()
            .map(|slot| workers.get(*slot).and_then(|worker| rate(&worker.heartbeat.rates, size)));
        known.clear();
        known.extend(rates.clone().flatten());
        let middle = known.len() / 2;
        let median = if known.is_empty() {
            DEFAULT_RATE
        } else {
            *known.select_nth_unstable_by(middle, f64::total_cmp).1
        };
        let mut sum = 0.0;
        let sums = &mut self.sums[size as usize];
        sums.clear();
        sums.extend(rates.map(|rate| {
            sum += rate.unwrap_or(median);
            sum
        }));
    }

    /// Whether every answer satisfies the pin.
    pub(crate) fn satisfies(&self, pin: &Pin) -> bool {
        !self.classes.is_empty() && self.classes.iter().all(|class| pin.admits(class))
    }

    /// Sum of the rates.
    pub(crate) fn total(&self, size: SizeClass) -> f64 {
        self.sums[size as usize].last().copied().unwrap_or(0.0)
    }

    /// The worker at a position of the sum of rates, and its rate.
    pub(crate) fn at_sum(&self, size: SizeClass, position: f64) -> Option<(u32, f64)> {
        let sums = &self.sums[size as usize];
        let at = sums.partition_point(|sum| *sum <= position).min(sums.len().checked_sub(1)?);
        Some((self.slots[at], self.rate(size, at)))
    }

    /// All workers with their rates.
    pub(crate) fn members(&self, size: SizeClass) -> impl Iterator<Item = (u32, f64)> {
        self.slots.iter().enumerate().map(move |(at, slot)| (*slot, self.rate(size, at)))
    }

    fn rate(&self, size: SizeClass, at: usize) -> f64 {
        let sums = &self.sums[size as usize];
        sums[at] - if at == 0 { 0.0 } else { sums[at - 1] }
    }
}

/// Measured tokens per second, if known.
pub(crate) fn rate(rates: &Rates, size: SizeClass) -> Option<f64> {
    let rate = f64::from(match size {
        SizeClass::Small => rates.small,
        SizeClass::Medium => rates.medium,
        SizeClass::Large => rates.large,
    });
    // A rate below one token per second would make other rates vanish in the sum.
    (rate.is_finite() && rate > 0.0).then_some(rate.max(1.0))
}

/// Whether a model is loaded, and the classes that its answers may have: of its active placements, or of all usable
/// ones if none is active. Empty if one of them is not known.
fn numerics(model: &ModelRecord) -> (bool, Vec<NumericsClass>) {
    let is_loaded = model.placements.iter().any(|placement| placement.active);
    let may_serve = |placement: &&PlacementRecord| {
        if is_loaded { placement.active } else { placement.obstacle.is_none() }
    };
    let class = |placement: &PlacementRecord| placement.class.as_ref()?.parse().ok();
    let classes: Option<Vec<NumericsClass>> = model.placements.iter().filter(may_serve).map(class).collect();
    let mut classes = classes.unwrap_or_default();
    classes.sort_unstable();
    classes.dedup();
    (is_loaded, classes)
}
