//! How fast the placement that serves is, as measured, and what that means for the size of batches.

use std::time::Duration;

use sconce::core::engine::Cost;

use crate::schedule::next_batch::Budget;

/// How long an interactive batch is to take.
const INTERACTIVE: f64 = 0.05;
/// Where much waits, the part of the wait that a batch may take, and how long at most: large batches get more done.
const PART: f64 = 0.25;
const BUSY: f64 = 0.1;
/// How long a bulk batch is to take where nobody waits behind it.
const BULK: f64 = 0.2;
/// How long a bulk batch may take while there is interactive traffic.
const SHARED: f64 = 0.02;
/// How long bulk waits behind interactive traffic before it takes every other turn.
const AGE: Duration = Duration::from_millis(500);
/// Numbers that leave an engine at once.
const NUMBERS: usize = 16 << 20;
/// How much a new measurement counts.
const WEIGHT: f64 = 0.1;

/// What batches cost, measured: some time each, and some for every token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Seconds for a batch of one short text.
    pub(crate) least: f64,
    /// Tokens a second in large batches.
    pub(crate) tokens_per_second: f64,
}

impl Rate {
    /// From the times of batches of so many tokens, the smallest first.
    pub(crate) fn from(measured: &[(usize, f64)]) -> Rate {
        let least = measured.first().map_or(0.0, |&(_, seconds)| seconds);
        let rates = measured.iter().map(|&(tokens, seconds)| tokens as f64 / seconds.max(1e-9));
        Rate { least, tokens_per_second: rates.fold(1.0, f64::max) }
    }

    /// Takes note of a batch, one of so many that go on at once. Small ones say little about the rate.
    pub(crate) fn observe(&mut self, tokens: usize, seconds: f64, concurrency: usize) {
        let little = SHARED * self.tokens_per_second / (2 * concurrency.max(1)) as f64;
        if tokens as f64 > little && seconds > 0.0 {
            let seen = tokens as f64 / seconds;
            self.tokens_per_second += WEIGHT * (seen - self.tokens_per_second);
        }
    }

    /// Seconds that so many tokens take.
    pub(crate) fn seconds(&self, tokens: usize) -> f64 {
        tokens as f64 / self.tokens_per_second.max(1.0)
    }

    /// Tokens that take so many seconds.
    pub(crate) fn tokens(&self, seconds: f64) -> usize {
        (seconds * self.tokens_per_second) as usize
    }

    /// The budget of batches whose rows are `width` numbers, where so many `hands` have one each at the same time and
    /// so many interactive tokens are `waiting`.
    pub(crate) fn budget(&self, cost: Cost, width: usize, concurrency: usize, waiting: usize) -> Budget {
        let tokens = |seconds| (self.tokens(seconds) / concurrency.max(1)).max(1);
        let interactive = (PART * self.seconds(waiting)).clamp(INTERACTIVE, BUSY);
        Budget {
            interactive: tokens(interactive),
            bulk: tokens(BULK),
            shared: tokens(SHARED),
            rows: (NUMBERS / width.max(1)).max(1),
            age: AGE,
            cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_time_times_what_was_measured() {
        let rate = Rate::from(&[(16, 0.002), (1024, 0.016), (4096, 0.0625)]);
        assert!((rate.tokens_per_second - 65536.0).abs() < 1.0);
        let budget = rate.budget(Cost::Packed, 384, 1, 0);
        assert_eq!((budget.interactive, budget.bulk, budget.shared), (3276, 13107, 1310));
        assert_eq!(rate.budget(Cost::Packed, 384, 4, 0).shared, 327, "a quarter of the machine each");
        assert!((rate.seconds(65536) - 1.0).abs() < 1e-9);
        let waiting = |tokens| rate.budget(Cost::Packed, 384, 1, tokens).interactive;
        assert_eq!(
            [waiting(13_000), waiting(20_000), waiting(1 << 20)],
            [3276, 5000, 6553],
            "a quarter of the wait"
        );
    }

    #[test]
    fn a_placement_that_gets_slower_is_given_less() {
        let mut rate = Rate { least: 0.001, tokens_per_second: 10_000.0 };
        rate.observe(16, 1.0, 1);
        assert!((rate.tokens_per_second - 10_000.0).abs() < 1e-9, "a small batch says nothing");
        for _ in 0..100 {
            rate.observe(1000, 1.0, 4);
        }
        assert!((rate.tokens_per_second - 1000.0).abs() < 10.0);
    }
}
