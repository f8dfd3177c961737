//! Which workers said no, why, and when they are asked again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time until a worker is asked again for the first time.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Maximum time until a worker is asked again.
const MAX_DELAY: Duration = Duration::from_mins(1);

/// Refusals by worker and model.
#[derive(Debug, Default)]
pub(super) struct Retries {
    refusals: BTreeMap<(String, String), Refused>,
}

#[derive(Debug)]
struct Refused {
    reason: String,
    /// What the worker ran then; `None` if it tried the load, which does not depend on that.
    version: Option<u64>,
    delay: Duration,
    due: Instant,
}

impl Retries {
    /// Takes note that a worker with models of this version makes no bid for a model.
    pub(super) fn refused(&mut self, worker: &str, model: &str, version: u64, reason: String, now: Instant) {
        self.insert(worker, model, Some(version), reason, now);
    }

    /// Takes note that a worker failed to load a model.
    pub(super) fn failed(&mut self, worker: &str, model: &str, reason: String, now: Instant) {
        self.insert(worker, model, None, reason, now);
    }

    fn insert(&mut self, worker: &str, model: &str, version: Option<u64>, reason: String, now: Instant) {
        let key = (worker.to_owned(), model.to_owned());
        let last = self.refusals.get(&key).filter(|last| last.version == version);
        let delay = last.map_or(FIRST_DELAY, |last| (last.delay * 2).min(MAX_DELAY));
        self.refusals.insert(key, Refused { reason, version, delay, due: now + delay });
    }

    /// Takes note of a bid that fits. A load that failed before may fail again.
    pub(super) fn bid(&mut self, worker: &str, model: &str) {
        let key = (worker.to_owned(), model.to_owned());
        if self.refusals.get(&key).is_some_and(|refused| refused.version.is_some()) {
            self.refusals.remove(&key);
        }
    }

    /// Takes note of a load that succeeded.
    pub(super) fn loaded(&mut self, worker: &str, model: &str) {
        self.refusals.remove(&(worker.to_owned(), model.to_owned()));
    }

    /// Whether a worker may be asked now: it did not refuse, its models have changed since, or enough time has passed.
    pub(super) fn is_due(&self, worker: &str, model: &str, version: u64, now: Instant) -> bool {
        let refused = self.refusals.get(&(worker.to_owned(), model.to_owned()));
        refused
            .is_none_or(|refused| refused.version.is_some_and(|known| known != version) || refused.due <= now)
    }

    /// Asks all workers about a model again.
    pub(super) fn forget(&mut self, model: &str) {
        self.refusals.retain(|(_, refused), _| refused != model);
    }

    /// Forgets workers and models that are gone.
    pub(super) fn retain(&mut self, is_known: impl Fn(&str, &str) -> bool) {
        self.refusals.retain(|(worker, model), _| is_known(worker, model));
    }

    /// Why a model is loaded nowhere, and the time until the next attempt.
    pub(super) fn reason(&self, model: &str, now: Instant) -> Option<(String, Duration)> {
        let of_model = || self.refusals.iter().filter(|((_, refused), _)| refused == model);
        let due = of_model().map(|(_, refused)| refused.due).min()?;
        let reasons: Vec<String> = of_model()
            .take(3)
            .map(|((worker, _), refused)| format!("`{worker}`: {}", refused.reason))
            .collect();
        let more = if of_model().count() > reasons.len() { "; …" } else { "" };
        Some((format!("{}{more}", reasons.join("; ")), due.saturating_duration_since(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_refused_is_asked_again_later_or_once_its_models_change() {
        let (mut retries, mut now) = (Retries::default(), Instant::now());
        assert!(retries.is_due("w", "m", 1, now));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            retries.refused("w", "m", 1, "full".to_owned(), now);
            let delay = Duration::from_secs(seconds);
            assert!(!retries.is_due("w", "m", 1, now + delay.mul_f32(0.99)), "{seconds}");
            assert!(retries.is_due("w", "m", 1, now + delay));
            assert!(retries.is_due("w", "m", 2, now) && retries.is_due("w", "other", 1, now));
            now += delay;
        }
        retries.refused("w", "m", 2, "full".to_owned(), now);
        assert_eq!(retries.reason("m", now), Some(("`w`: full".to_owned(), FIRST_DELAY)));
        retries.bid("w", "m");
        assert!(retries.is_due("w", "m", 2, now) && retries.reason("m", now).is_none());
    }

    #[test]
    fn a_load_that_failed_is_tried_less_and_less_often_whatever_the_worker_bids() {
        let (mut retries, mut now) = (Retries::default(), Instant::now());
        for seconds in [1, 2, 4, 8] {
            retries.failed("w", "m", "broken".to_owned(), now);
            retries.bid("w", "m");
            let delay = Duration::from_secs(seconds);
            assert!(!retries.is_due("w", "m", 7, now + delay.mul_f32(0.99)), "{seconds}");
            assert!(retries.is_due("w", "m", 7, now + delay));
            now += delay;
        }
        retries.loaded("w", "m");
        assert!(retries.is_due("w", "m", 7, now));
    }

    #[test]
    fn reasons_name_a_few_workers() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        for worker in ["a", "b", "c", "d"] {
            retries.refused(worker, "m", 1, format!("no {worker}"), now);
        }
        let (reason, _) = retries.reason("m", now).unwrap();
        assert_eq!(reason, "`a`: no a; `b`: no b; `c`: no c; …");
        retries.retain(|worker, _| worker == "d");
        assert_eq!(retries.reason("m", now).unwrap().0, "`d`: no d");
        retries.forget("m");
        assert!(retries.reason("m", now).is_none());
    }
}
