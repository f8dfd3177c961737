//! Hedges: a second attempt for a request that takes longer than its like.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::hedge::Hedger;
use crate::size::SizeClass;

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
    pub(super) fn hedge(&self, send: impl FnOnce() -> bool) -> bool {
        if !self.hedger().try_hedge() {
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
