//! Hedges: a second attempt for a request that takes longer than its like.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::hedge::Hedger;
use crate::size::SizeClass;

/// Minimum time between two attempts to hedge a request.
const MIN_INTERVAL: Duration = Duration::from_millis(25);

/// Decides when a request of this gateway is sent to a second worker.
#[derive(Default)]
pub(super) struct Hedging {
    hedger: Mutex<Hedger>,
}

impl Hedging {
    fn hedger(&self) -> MutexGuard<'_, Hedger> {
        self.hedger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    pub(super) fn request(&self) {
        self.hedger().request();
    }

    /// How long to wait for an answer before a hedge.
    pub(super) fn delay(&self, size: SizeClass, predicted: Duration) -> Option<Duration> {
        self.hedger().delay(size, predicted)
    }

    /// Sends a hedge if one is allowed now. `send` returns whether there is a worker for it.
    pub(super) fn hedge(&self, is_urgent: bool, send: impl FnOnce() -> bool) -> bool {
        if !self.hedger().try_hedge(is_urgent) {
            return false;
        }
        let is_sent = send();
        if !is_sent {
            self.hedger().refund();
        }
        is_sent
    }

    /// Takes the duration of an attempt that was answered.
    pub(super) fn answered(&self, size: SizeClass, predicted: Duration, took: Duration) {
        self.hedger().record(size, predicted, took);
    }
}

/// When a request is hedged: once it takes longer than its like, and urgently after half of its time limit.
pub(super) struct HedgeTimer {
    /// The next attempt to hedge.
    next: Instant,
    /// Time between two attempts that are not urgent.
    interval: Duration,
    /// From then on hedges are urgent.
    urgent: Instant,
}

impl HedgeTimer {
    /// A hedge after `delay`, or if that is not known, after half of the time until `deadline`.
    pub(super) fn new(delay: Option<Duration>, now: Instant, deadline: Instant) -> HedgeTimer {
        let half = deadline.saturating_duration_since(now) / 2;
        let delay = delay.map_or(half, |delay| delay.min(half));
        HedgeTimer { next: now + delay, interval: delay.max(MIN_INTERVAL), urgent: now + half }
    }

    /// Waits for the next attempt to hedge.
    pub(super) async fn elapsed(&self) {
        sleep_until(self.next).await;
    }

    /// Whether half of the time limit has passed.
    pub(super) fn is_urgent(&self, now: Instant) -> bool {
        now >= self.urgent
    }

    /// Tries again later: more requests allow more hedges, and urgent ones are allowed more.
    pub(super) fn retry(&mut self, now: Instant) {
        let is_urgent = self.is_urgent(now);
        self.next = if is_urgent { now + MIN_INTERVAL } else { self.urgent.min(now + self.interval) };
    }
}

/// The attempts of one request, of which one is answered first.
#[derive(Default)]
pub(super) struct Race {
    /// Number of this attempt, from 1.
    number: usize,
    /// The attempt that was answered first, or 0.
    winner: Arc<AtomicUsize>,
}

impl Race {
    /// The next attempt.
    pub(super) fn join(&mut self) -> Race {
        self.number += 1;
        Race { number: self.number, winner: Arc::clone(&self.winner) }
    }

    /// This attempt is answered first.
    pub(super) fn end(&self) {
        self.winner.store(self.number, Ordering::Relaxed);
    }

    /// Whether an attempt that began later was answered first.
    pub(super) fn is_overtaken(&self) -> bool {
        self.number < self.winner.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds after which a request with a time limit of 2 s is hedged, and whether that is urgent.
    fn times(delay: Option<u64>) -> Vec<(u128, bool)> {
        let start = Instant::now();
        let mut timer =
            HedgeTimer::new(delay.map(Duration::from_millis), start, start + Duration::from_secs(2));
        let mut next = || {
            let time = timer.next;
            timer.retry(time);
            ((time - start).as_millis(), timer.is_urgent(time))
        };
        (0..4).map(|_| next()).collect()
    }

    #[test]
    fn a_request_is_hedged_once_it_is_late_and_urgently_after_half_of_its_time() {
        assert_eq!(times(Some(400)), [(400, false), (800, false), (1000, true), (1025, true)]);
        assert_eq!(times(Some(1)), [(1, false), (26, false), (51, false), (76, false)]);
        for unknown in [None, Some(5000)] {
            assert_eq!(times(unknown)[..2], [(1000, true), (1025, true)]);
        }
        let now = Instant::now();
        let mut late = HedgeTimer::new(None, now, now);
        assert!(late.is_urgent(now));
        late.retry(now);
        assert_eq!(late.next, now + MIN_INTERVAL);
    }

    #[test]
    fn an_attempt_is_overtaken_by_a_later_one() {
        for (winner, overtaken) in [(0, [false; 3]), (1, [true, false, false]), (2, [true, true, false])] {
            let mut race = Race::default();
            let attempts = [race.join(), race.join(), race.join()];
            assert!(!attempts.iter().any(Race::is_overtaken));
            attempts[winner].end();
            assert_eq!(attempts.each_ref().map(Race::is_overtaken), overtaken);
        }
    }
}
