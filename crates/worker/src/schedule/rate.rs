//! Measured throughput of the active placement, and the batch budget that follows from it.

use std::time::Duration;

use sconce::core::engine::BatchLayout;

use crate::schedule::next_batch::Budget;

/// Target duration of an interactive batch, in seconds.
const INTERACTIVE_SECONDS: f64 = 0.05;
/// Under load an interactive batch may take this fraction of the queue time: larger batches have more throughput.
const QUEUE_FRACTION: f64 = 0.25;
/// Maximum duration of an interactive batch under load, in seconds.
const MAX_INTERACTIVE_SECONDS: f64 = 0.1;
/// Target duration of a bulk batch without interactive traffic, in seconds.
const BULK_SECONDS: f64 = 0.2;
/// Target duration of a bulk batch during interactive traffic, in seconds.
const SHARED_SECONDS: f64 = 0.02;
/// Time that bulk waits behind interactive traffic before it gets every other batch.
const MAX_BULK_WAIT: Duration = Duration::from_millis(500);
/// Maximum output values of a batch.
const MAX_VALUES: usize = 16 << 20;
/// Weight of a new measurement in the moving average.
const SMOOTHING: f64 = 0.1;

/// Measured throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Latency of a batch of one short text, in seconds.
    pub(crate) min_seconds: f64,
    /// Throughput of large batches.
    pub(crate) tokens_per_second: f64,
}

impl Rate {
    /// From measured batches as tokens and seconds, the smallest first.
    pub(crate) fn from(measured: &[(usize, f64)]) -> Rate {
        let min_seconds = measured.first().map_or(0.0, |&(_, seconds)| seconds);
        let rates = measured.iter().map(|&(tokens, seconds)| tokens as f64 / seconds.max(1e-9));
        Rate { min_seconds, tokens_per_second: rates.fold(1.0, f64::max) }
    }

    /// Updates the moving average with a batch, one of `concurrency` at a time. Small batches are not representative and
    /// are ignored.
    pub(crate) fn observe(&mut self, tokens: usize, seconds: f64, concurrency: usize) {
        let small = SHARED_SECONDS * self.tokens_per_second / (2 * concurrency.max(1)) as f64;
        if tokens as f64 > small && seconds > 0.0 {
            let observed = tokens as f64 / seconds;
            self.tokens_per_second += SMOOTHING * (observed - self.tokens_per_second);
        }
    }

    /// Seconds to compute `tokens`.
    pub(crate) fn seconds(&self, tokens: usize) -> f64 {
        tokens as f64 / self.tokens_per_second.max(1.0)
    }

    /// Tokens that are computed in `seconds`.
    pub(crate) fn tokens(&self, seconds: f64) -> usize {
        (seconds * self.tokens_per_second) as usize
    }

    /// The budget of one of `concurrency` batches at a time, with rows of `width` values and `waiting` interactive tokens
    /// in the queue.
    pub(crate) fn budget(
        &self,
        cost: BatchLayout,
        width: usize,
        concurrency: usize,
        waiting: usize,
    ) -> Budget {
        let tokens = |seconds| (self.tokens(seconds) / concurrency.max(1)).max(1);
        let interactive =
            (QUEUE_FRACTION * self.seconds(waiting)).clamp(INTERACTIVE_SECONDS, MAX_INTERACTIVE_SECONDS);
        Budget {
            interactive: tokens(interactive),
            bulk: tokens(BULK_SECONDS),
            shared: tokens(SHARED_SECONDS),
            rows: (MAX_VALUES / width.max(1)).max(1),
            max_bulk_wait: MAX_BULK_WAIT,
            cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_target_duration_times_throughput() {
        let rate = Rate::from(&[(16, 0.002), (1024, 0.016), (4096, 0.0625)]);
        assert!((rate.tokens_per_second - 65536.0).abs() < 1.0);
        let budget = rate.budget(BatchLayout::Packed, 384, 1, 0);
        assert_eq!((budget.interactive, budget.bulk, budget.shared), (3276, 13107, 1310));
        assert_eq!(rate.budget(BatchLayout::Packed, 384, 4, 0).shared, 327, "a quarter of the machine each");
        assert!((rate.seconds(65536) - 1.0).abs() < 1e-9);
        let waiting = |tokens| rate.budget(BatchLayout::Packed, 384, 1, tokens).interactive;
        assert_eq!(
            [waiting(13_000), waiting(20_000), waiting(1 << 20)],
            [3276, 5000, 6553],
            "a quarter of the queue time"
        );
    }

    #[test]
    fn the_budget_follows_a_placement_that_gets_slower() {
        let mut rate = Rate { min_seconds: 0.001, tokens_per_second: 10_000.0 };
        rate.observe(16, 1.0, 1);
        assert!((rate.tokens_per_second - 10_000.0).abs() < 1e-9, "a small batch is ignored");
        for _ in 0..100 {
            rate.observe(1000, 1.0, 4);
        }
        assert!((rate.tokens_per_second - 1000.0).abs() < 10.0);
    }
}
