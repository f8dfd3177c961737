//! The number of batches in flight, integrated over time.

use std::time::Instant;

/// Batches in flight and the worker seconds that they have used.
pub(super) struct InFlight {
    batches: usize,
    worker_seconds: f64,
    updated: Instant,
}

impl InFlight {
    pub(super) fn new() -> InFlight {
        InFlight { batches: 0, worker_seconds: 0.0, updated: Instant::now() }
    }

    pub(super) fn batches(&self) -> usize {
        self.batches
    }

    /// Adds `delta` batches at `now` and returns the worker seconds used until then. A late update counts no time twice.
    pub(super) fn update(&mut self, now: Instant, delta: isize) -> f64 {
        self.worker_seconds +=
            self.batches as f64 * now.saturating_duration_since(self.updated).as_secs_f64();
        self.updated = self.updated.max(now);
        self.batches = self.batches.saturating_add_signed(delta);
        self.worker_seconds
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn concurrent_batches_use_twice_the_worker_seconds() {
        let mut in_flight = InFlight::new();
        let start = in_flight.updated;
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let first = in_flight.update(after(10), 1);
        let second = in_flight.update(after(20), 1);
        assert!((second - first - 0.01).abs() < 1e-9);
        // An update that arrives late counts once.
        assert!((in_flight.update(after(40), -1) - second - 0.04).abs() < 1e-9);
        assert!((in_flight.update(after(30), 0) - second - 0.04).abs() < 1e-9);
        assert!((in_flight.update(after(50), -1) - second - 0.05).abs() < 1e-9);
        assert!((in_flight.update(after(90), 0) - second - 0.05).abs() < 1e-9);
    }
}
