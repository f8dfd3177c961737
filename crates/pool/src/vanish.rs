//! Holds placement when many workers vanish at once: then the network or the registry is at fault more often than the
//! workers are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sconce_registry::{MemberMap, WorkerState};

/// Time in which workers count as vanished together.
const WINDOW: Duration = Duration::from_secs(10);
/// How long placement is held.
const HOLD: Duration = Duration::from_mins(1);
/// How long the replicas of a worker that vanished still count. Workers that a partition cuts off expire one after
/// another, within an interval of their heartbeats.
const SETTLE: Duration = Duration::from_secs(3);
/// More than one in this many workers must vanish.
const FRACTION: usize = 5;
/// Minimum number of workers that must vanish.
const MIN_VANISHED: usize = 3;

/// Watches the members for a mass departure.
#[derive(Debug, Default)]
pub struct VanishGuard {
    /// Members by id, and whether they were about to leave.
    members: BTreeMap<String, bool>,
    /// When workers vanished, within the window.
    vanished: BTreeMap<String, Instant>,
    held_until: Option<Instant>,
}

impl VanishGuard {
    /// Takes the members of a map. Workers that were draining are expected to leave.
    pub fn update(&mut self, map: &MemberMap, now: Instant) {
        let is_draining = |state| state == WorkerState::Draining;
        let members: BTreeMap<String, bool> = map
            .iter()
            .map(|one| (one.registration.worker_id.clone(), is_draining(one.heartbeat.state)))
            .collect();
        for (id, was_draining) in std::mem::take(&mut self.members) {
            if !was_draining && !members.contains_key(&id) {
                self.vanished.insert(id, now);
            }
        }
        self.vanished.retain(|_, at| now.saturating_duration_since(*at) <= WINDOW);
        let returned = self.vanished.keys().filter(|id| members.contains_key(*id)).count();
        let all = members.len() + self.vanished.len() - returned;
        if self.vanished.len() >= MIN_VANISHED && self.vanished.len() * FRACTION > all {
            self.held_until = Some(now + HOLD);
        }
        self.members = members;
    }

    /// Whether a worker vanished a moment ago. Its replicas should still count, until it is known whether others vanish
    /// too.
    pub fn has_just_vanished(&self, worker_id: &str, now: Instant) -> bool {
        let at = self.vanished.get(worker_id).filter(|_| !self.members.contains_key(worker_id));
        at.is_some_and(|at| now.saturating_duration_since(*at) < SETTLE)
    }

    /// Whether nothing may be moved now.
    pub fn is_holding(&self, now: Instant) -> bool {
        self.held_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sconce_registry::{BootId, Heartbeat, Load, Rates, Registration};

    use super::*;

    fn join(map: &mut MemberMap, id: usize, state: WorkerState, now: Instant) {
        let boot_id = BootId::random();
        let registration = Registration {
            worker_id: id.to_string(),
            boot_id,
            url: String::new(),
            version: String::new(),
            ttl_ms: 3000,
            models: Vec::new(),
            failure: None,
        };
        let (load, rates, free_memory) = (Load::default(), Rates::default(), BTreeMap::new());
        map.register(Arc::new(registration), now);
        map.heartbeat(
            &id.to_string(),
            Heartbeat { boot_id, sequence: 1, state, load, rates, free_memory },
            now,
        );
    }

    /// Whether the departure of `leaving` of `count` workers, `gap` apart, holds placement.
    fn holds(count: usize, leaving: usize, gap: Duration, state: WorkerState) -> bool {
        let (mut map, mut guard, mut now) = (MemberMap::default(), VanishGuard::default(), Instant::now());
        (0..count).for_each(|id| join(&mut map, id, state, now));
        guard.update(&map, now);
        assert!(!guard.is_holding(now));
        for id in 0..leaving {
            now += gap;
            map.deregister(&id.to_string());
            guard.update(&map, now);
        }
        guard.is_holding(now)
    }

    #[test]
    fn more_than_a_fifth_and_at_least_three_hold_placement() {
        let at_once = |count, leaving| holds(count, leaving, Duration::ZERO, WorkerState::Ready);
        assert!(!at_once(4, 2), "fewer than three");
        assert!(at_once(4, 3));
        assert!(at_once(3, 3));
        assert!(!at_once(15, 3), "exactly a fifth");
        assert!(at_once(14, 3));
        assert!(!at_once(1000, 200));
        assert!(at_once(1000, 201));
    }

    #[test]
    fn workers_that_leave_slowly_or_on_purpose_do_not() {
        assert!(holds(10, 4, Duration::from_secs(3), WorkerState::Ready));
        assert!(!holds(10, 9, Duration::from_secs(6), WorkerState::Ready));
        assert!(!holds(10, 9, Duration::ZERO, WorkerState::Draining));
    }

    #[test]
    fn a_worker_that_vanished_counts_for_a_moment() {
        let (mut map, mut guard, now) = (MemberMap::default(), VanishGuard::default(), Instant::now());
        (0..2).for_each(|id| join(&mut map, id, WorkerState::Ready, now));
        guard.update(&map, now);
        assert!(!guard.has_just_vanished("0", now));
        map.deregister("0");
        guard.update(&map, now);
        assert!(guard.has_just_vanished("0", now) && !guard.has_just_vanished("1", now));
        assert!(!guard.has_just_vanished("0", now + SETTLE));
        join(&mut map, 0, WorkerState::Ready, now);
        guard.update(&map, now);
        assert!(!guard.has_just_vanished("0", now), "it is back");
    }

    #[test]
    fn the_hold_ends_after_a_minute_and_returning_workers_do_not_end_it() {
        let (mut map, mut guard, start) = (MemberMap::default(), VanishGuard::default(), Instant::now());
        (0..10).for_each(|id| join(&mut map, id, WorkerState::Ready, start));
        guard.update(&map, start);
        (0..5).for_each(|id| map.deregister(&id.to_string()));
        guard.update(&map, start);
        (0..5).for_each(|id| join(&mut map, id, WorkerState::Ready, start));
        let later = start + Duration::from_secs(59);
        guard.update(&map, later);
        assert!(guard.is_holding(later));
        guard.update(&map, start + HOLD);
        assert!(!guard.is_holding(start + HOLD));
    }
}
