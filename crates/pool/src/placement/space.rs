//! Makes space for a model that fits nowhere: unloads replicas that no request has called for recently.

use std::collections::BTreeMap;
use std::time::Instant;

use super::fit::Offer;
use crate::place::{Action, Desired, Replica};

/// What is known of replicas beside the replicas themselves.
pub(super) trait Usage {
    /// Bytes of a replica, if known.
    fn bytes(&self, worker: &str, model: &str) -> Option<u64>;

    /// Time of the last request for a model, if there was one.
    fn last_used(&self, model: &str) -> Option<Instant>;
}

/// The replica to unload so that a model without a replica may fit. `None` if every such model has a bid that fits, or
/// if no replica is spare where that would help. One per call: the next bids show whether it was enough.
pub(super) fn make_space(
    offers: &[Offer],
    replicas: &[Replica],
    desired: &[Desired],
    usage: &impl Usage,
) -> Option<Action> {
    let mut running: BTreeMap<&str, u32> = BTreeMap::new();
    for replica in replicas {
        *running.entry(&replica.model).or_default() += 1;
    }
    let count = |model: &str| running.get(model).copied().unwrap_or(0);
    let needed: BTreeMap<&str, u32> = desired
        .iter()
        .map(|one| (one.model.as_str(), one.demand.max(one.min_replicas).min(one.max_replicas)))
        .collect();
    let is_spare = |replica: &&Replica| {
        let needed = needed.get(replica.model.as_str()).copied().unwrap_or(0);
        replica.is_managed && count(&replica.model) > needed
    };
    let lacking = desired.iter().filter(|one| count(&one.model) == 0 && needed[one.model.as_str()] > 0);
    for one in lacking {
        let offers = || offers.iter().filter(|offer| offer.bid.model == one.model);
        if offers().any(Offer::fits) {
            continue;
        }
        let mut best: Option<(Option<Instant>, &Replica)> = None;
        for offer in offers().filter(|offer| offer.fits_alone && offer.bid.obstacles.is_empty()) {
            let spare =
                || replicas.iter().filter(|replica| replica.worker == offer.bid.worker).filter(is_spare);
            // A size that is not known may be enough.
            let freed =
                spare().map(|replica| usage.bytes(&replica.worker, &replica.model)).sum::<Option<u64>>();
            if freed.is_some_and(|freed| offer.bid.free_bytes.saturating_add(freed) < offer.bid.bytes) {
                continue;
            }
            for replica in spare() {
                let candidate = (usage.last_used(&replica.model), replica);
                let order = |(used, replica): &(Option<Instant>, &Replica)| {
                    (*used, replica.worker.clone(), replica.model.clone())
                };
                if best.as_ref().is_none_or(|best| order(&candidate) < order(best)) {
                    best = Some(candidate);
                }
            }
        }
        if let Some((_, replica)) = best {
            return Some(Action::Unload { worker: replica.worker.clone(), model: replica.model.clone() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::place::Bid;

    struct Known(BTreeMap<&'static str, (u64, Instant)>);

    impl Usage for Known {
        fn bytes(&self, _: &str, model: &str) -> Option<u64> {
            self.0.get(model).map(|(bytes, _)| *bytes)
        }

        fn last_used(&self, model: &str) -> Option<Instant> {
            self.0.get(model).map(|(_, used)| *used)
        }
    }

    fn offer(worker: &str, bytes: u64, free_bytes: u64) -> Offer {
        let bid = Bid {
            worker: worker.to_owned(),
            model: "new".to_owned(),
            bytes,
            free_bytes,
            rate: 1.0,
            load_seconds: 1.0,
            class: None,
            obstacles: Vec::new(),
        };
        Offer { bid, fits_alone: bytes <= 100 }
    }

    fn replica(worker: &str, model: &str) -> Replica {
        let (worker, model) = (worker.to_owned(), model.to_owned());
        Replica { worker, model, class: None, rate: 1.0, is_managed: true }
    }

    fn desired(model: &str, min_replicas: u32, demand: u32) -> Desired {
        let (model, source) = (model.to_owned(), String::new());
        Desired { model, source, min_replicas, max_replicas: 2, demand, pin: None }
    }

    fn unload(worker: &str, model: &str) -> Action {
        Action::Unload { worker: worker.to_owned(), model: model.to_owned() }
    }

    #[test]
    fn the_replica_that_was_used_least_recently_makes_way() {
        let now = Instant::now();
        let used = |bytes, seconds| (bytes, now + Duration::from_secs(seconds));
        let usage = Known(BTreeMap::from([("a", used(40, 9)), ("b", used(40, 3)), ("kept", used(40, 1))]));
        let running = [replica("w", "a"), replica("w", "b"), replica("w", "kept")];
        let all = [desired("new", 0, 1), desired("a", 0, 0), desired("b", 0, 0), desired("kept", 1, 0)];
        assert_eq!(make_space(&[offer("w", 30, 10)], &running, &all, &usage), Some(unload("w", "b")));
        assert_eq!(make_space(&[offer("w", 90, 10)], &running, &all, &usage), Some(unload("w", "b")));
        assert_eq!(make_space(&[offer("w", 91, 10)], &running, &all, &usage), None, "not even then");
        assert_eq!(make_space(&[offer("w", 101, 10)], &running, &all, &usage), None, "not even alone");
        assert_eq!(make_space(&[offer("w", 10, 10)], &running, &all, &usage), None, "it fits");
        let used = [desired("new", 0, 1), desired("a", 0, 1), desired("b", 0, 1), desired("kept", 1, 0)];
        assert_eq!(make_space(&[offer("w", 30, 10)], &running, &used, &usage), None, "all are in use");
        let cold = [desired("new", 0, 0), desired("a", 0, 0)];
        assert_eq!(make_space(&[offer("w", 30, 10)], &running, &cold, &usage), None, "nobody asks for it");
        let unknown = Known(BTreeMap::new());
        assert_eq!(make_space(&[offer("w", 90, 10)], &running, &all, &unknown), Some(unload("w", "a")));
    }
}
