//! Demand: which models requests call for, and for how many replicas.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a request keeps the demand for its model.
pub(super) const KEEP: Duration = Duration::from_mins(1);
/// Time between two increases of the demand for a model. A new replica needs time to relieve the others.
const STEP: Duration = Duration::from_secs(10);

/// The demand for models.
#[derive(Debug, Default)]
pub(super) struct Demand {
    models: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    /// Time of the last request.
    used: Instant,
    /// Replicas that requests call for while replicas are overloaded, and since when.
    overloaded: Option<(u32, Instant)>,
}

impl Demand {
    /// Takes note of a request for a model.
    pub(super) fn used(&mut self, model: &str, now: Instant) {
        match self.models.get_mut(model) {
            Some(entry) => entry.used = now,
            None => drop(self.models.insert(model.to_owned(), Entry { used: now, overloaded: None })),
        }
    }

    /// Takes note of a request that all of `running` replicas were too busy for.
    pub(super) fn overloaded(&mut self, model: &str, running: u32, now: Instant) {
        self.used(model, now);
        if let Some(entry) = self.models.get_mut(model)
            && entry.overloaded.is_none_or(|(_, since)| now.saturating_duration_since(since) >= STEP)
        {
            entry.overloaded = Some((running + 1, now));
        }
    }

    /// Number of replicas that requests call for.
    pub(super) fn replicas(&self, model: &str, now: Instant) -> u32 {
        let is_recent = |time: Instant| now.saturating_duration_since(time) < KEEP;
        let Some(entry) = self.models.get(model).filter(|entry| is_recent(entry.used)) else { return 0 };
        entry.overloaded.filter(|(_, since)| is_recent(*since)).map_or(1, |(replicas, _)| replicas.max(1))
    }

    /// Time of the last request for a model.
    pub(super) fn last_used(&self, model: &str) -> Option<Instant> {
        self.models.get(model).map(|entry| entry.used)
    }

    /// Forgets models that are not desired.
    pub(super) fn retain(&mut self, is_desired: impl Fn(&str) -> bool) {
        self.models.retain(|model, _| is_desired(model));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_call_for_a_replica_for_a_while_and_overload_for_more() {
        let (mut demand, now) = (Demand::default(), Instant::now());
        assert_eq!(demand.replicas("m", now), 0);
        demand.used("m", now);
        assert_eq!(demand.replicas("m", now), 1);
        assert_eq!((demand.replicas("m", now + KEEP), demand.replicas("other", now)), (0, 0));
        demand.overloaded("m", 1, now);
        assert_eq!(demand.replicas("m", now), 2);
        demand.overloaded("m", 2, now + STEP / 2);
        assert_eq!(demand.replicas("m", now), 2, "the second replica has just been called for");
        demand.overloaded("m", 2, now + STEP);
        assert_eq!(demand.replicas("m", now + STEP), 3);
        demand.used("m", now + KEEP);
        assert_eq!(demand.replicas("m", now + STEP + KEEP), 1, "it is not overloaded any more");
        demand.retain(|model| model == "other");
        assert_eq!((demand.replicas("m", now), demand.last_used("m")), (0, None));
    }
}
