//! Hedges: a second attempt for a request that takes longer than its like.

use std::sync::{Mutex, MutexGuard, PoisonError};
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

    /// How long to wait for an answer before a hedge. Counts the request.
    pub(super) fn delay(&self, size: SizeClass, predicted: Duration) -> Option<Duration> {
        let mut hedger = self.hedger();
        hedger.request();
        hedger.delay(size, predicted)
    }

    /// Whether a hedge may be sent now.
    pub(super) fn admits(&self) -> bool {
        self.hedger().try_hedge()
    }

    /// Takes the duration of an attempt that was answered.
    pub(super) fn answered(&self, size: SizeClass, predicted: Duration, took: Duration) {
        self.hedger().record(size, predicted, took);
    }
}
