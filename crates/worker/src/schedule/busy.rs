//! How many batches are at work, over time.

use std::time::Instant;

/// How many batches are at work, and the seconds that all of them have spent.
pub(super) struct Busy {
    batches: usize,
    spent: f64,
    since: Instant,
}

impl Busy {
    pub(super) fn new() -> Busy {
        Busy { batches: 0, spent: 0.0, since: Instant::now() }
    }

    pub(super) fn batches(&self) -> usize {
        self.batches
    }

    /// So many more are at work from `now` on; the seconds spent until then.
    pub(super) fn change(&mut self, now: Instant, more: isize) -> f64 {
        self.spent += self.batches as f64 * now.saturating_duration_since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        self.batches = self.batches.saturating_add_signed(more);
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn batches_side_by_side_spend_twice_the_time() {
        let mut busy = Busy::new();
        let start = busy.since;
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let first = busy.change(after(10), 1);
        let second = busy.change(after(20), 1);
        assert!((second - first - 0.01).abs() < 1e-9);
        // What is told late counts once.
        assert!((busy.change(after(40), -1) - second - 0.04).abs() < 1e-9);
        assert!((busy.change(after(30), 0) - second - 0.04).abs() < 1e-9);
        assert!((busy.change(after(50), -1) - second - 0.05).abs() < 1e-9);
        assert!((busy.change(after(90), 0) - second - 0.05).abs() < 1e-9);
    }
}
