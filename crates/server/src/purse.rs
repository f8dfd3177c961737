//! How many tokens each key may still use, where it is good for so many a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::keys::{Guest, Owner};

/// Seconds of its rate that a key saves up at most.
const SAVED: f64 = 2.0;

/// What each key may still use.
#[derive(Default)]
pub(crate) struct Purses {
    purses: Mutex<HashMap<Owner, Purse>>,
}

/// What one key may still use; less than nothing after a large request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Purse {
    tokens: f64,
    since: Instant,
}

impl Purses {
    /// Takes so many tokens; where nothing is left, the seconds until something is.
    pub(crate) fn charge(&self, guest: Guest, tokens: usize) -> Result<(), f64> {
        let Some(rate) = guest.rate else { return Ok(()) };
        let now = Instant::now();
        let mut purses = self.purses.lock().unwrap_or_else(PoisonError::into_inner);
        let purse = purses.entry(guest.owner).or_insert(Purse { tokens: SAVED * rate, since: now });
        *purse = purse.charged(rate, tokens, now)?;
        Ok(())
    }

    /// Gives back what was taken for work that was refused.
    pub(crate) fn refund(&self, guest: Guest, tokens: usize) {
        let mut purses = self.purses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(purse) = purses.get_mut(&guest.owner) {
            purse.tokens += tokens as f64;
        }
    }
}

impl Purse {
    /// What is left after so many tokens.
    fn charged(self, rate: f64, tokens: usize, now: Instant) -> Result<Purse, f64> {
        let saved = rate * now.saturating_duration_since(self.since).as_secs_f64();
        let there = (self.tokens + saved).min(SAVED * rate);
        if there <= 0.0 {
            return Err(-there / rate);
        }
        Ok(Purse { tokens: there - tokens as f64, since: now })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_refused_costs_nothing() {
        let (purses, guest) = (Purses::default(), Guest { rate: Some(0.001), ..Guest::default() });
        for _ in 0..50 {
            purses.charge(guest, 1000).expect("something is there");
            purses.refund(guest, 1000);
        }
    }

    #[test]
    fn a_key_uses_what_it_saved_and_then_its_rate() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let purse = Purse { tokens: 200.0, since: start };
        let purse = purse.charged(100.0, 250, at(0)).expect("something is there");
        let wait = purse.charged(100.0, 1, at(100)).expect_err("forty are owed");
        assert!((wait - 0.4).abs() < 1e-6, "{wait}");
        let purse = purse.charged(100.0, 10, at(600)).expect("ten are there");
        assert!(purse.tokens.abs() < 1e-6);
        let purse = purse.charged(100.0, 0, at(60_000)).expect("it has saved");
        assert!((purse.tokens - 200.0).abs() < 1e-6);
    }

    #[test]
    fn a_key_starts_with_two_seconds_of_its_rate_and_owes_what_it_overdrew() {
        let (purses, guest) = (Purses::default(), Guest { rate: Some(4.0), ..Guest::default() });
        purses.charge(guest, 7).expect("a full bucket");
        purses.charge(guest, 1 << 20).expect("one token is left, and the last request may overdraw");
        let wait = purses.charge(guest, 1).expect_err("it is overdrawn");
        assert!((wait - f64::from(1 << 18)).abs() < 1e4, "{wait}");
        let other = Guest { owner: Owner(2), ..guest };
        purses.refund(other, 1);
        purses.charge(other, 1).expect("every key has a bucket of its own");
        let unlimited = Guest { rate: None, ..guest };
        purses.charge(unlimited, usize::MAX).expect("a key without a rate has no limit");
    }

    #[test]
    fn an_empty_bucket_refuses() {
        let now = Instant::now();
        let purse = Purse { tokens: 0.0, since: now };
        assert_eq!(purse.charged(10.0, 1, now), Err(0.0));
        let purse = Purse { tokens: -5.0, since: now };
        assert_eq!(purse.charged(10.0, 0, now), Err(0.5));
    }
}
