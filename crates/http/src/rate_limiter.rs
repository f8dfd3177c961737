//! How many tokens each key may still use, where it is good for so many a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::keys::{Principal, TenantId};

/// Seconds of its rate that a key saves up at most.
const SAVED: f64 = 2.0;

/// What each key may still use.
#[derive(Default)]
pub(crate) struct RateLimiters {
    rate_limiters: Mutex<HashMap<TenantId, TokenBucket>>,
}

/// What one key may still use; less than nothing after a large request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenBucket {
    tokens: f64,
    since: Instant,
}

impl RateLimiters {
    /// Takes so many tokens; where nothing is left, the seconds until something is.
    pub(crate) fn charge(&self, principal: Principal, tokens: usize) -> Result<(), f64> {
        let Some(rate) = principal.rate else { return Ok(()) };
        let now = Instant::now();
        let mut rate_limiters = self.rate_limiters.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket =
            rate_limiters.entry(principal.tenant).or_insert(TokenBucket { tokens: SAVED * rate, since: now });
        *bucket = bucket.charged(rate, tokens, now)?;
        Ok(())
    }

    /// Gives back what was taken for work that was refused.
    pub(crate) fn refund(&self, principal: Principal, tokens: usize) {
        let mut rate_limiters = self.rate_limiters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = rate_limiters.get_mut(&principal.tenant) {
            bucket.tokens += tokens as f64;
        }
    }
}

impl TokenBucket {
    /// What is left after so many tokens.
    fn charged(self, rate: f64, tokens: usize, now: Instant) -> Result<TokenBucket, f64> {
        let saved = rate * now.saturating_duration_since(self.since).as_secs_f64();
        let there = (self.tokens + saved).min(SAVED * rate);
        if there <= 0.0 {
            return Err(-there / rate);
        }
        Ok(TokenBucket { tokens: there - tokens as f64, since: now })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_refused_costs_nothing() {
        let (rate_limiters, principal) =
            (RateLimiters::default(), Principal { rate: Some(0.001), ..Principal::default() });
        for _ in 0..50 {
            rate_limiters.charge(principal, 1000).expect("something is there");
            rate_limiters.refund(principal, 1000);
        }
    }

    #[test]
    fn a_key_uses_what_it_saved_and_then_its_rate() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let bucket = TokenBucket { tokens: 200.0, since: start };
        let bucket = bucket.charged(100.0, 250, at(0)).expect("something is there");
        let wait = bucket.charged(100.0, 1, at(100)).expect_err("forty are owed");
        assert!((wait - 0.4).abs() < 1e-6, "{wait}");
        let bucket = bucket.charged(100.0, 10, at(600)).expect("ten are there");
        assert!(bucket.tokens.abs() < 1e-6);
        let bucket = bucket.charged(100.0, 0, at(60_000)).expect("it has saved");
        assert!((bucket.tokens - 200.0).abs() < 1e-6);
    }

    #[test]
    fn a_key_starts_with_two_seconds_of_its_rate_and_owes_what_it_overdrew() {
        let (rate_limiters, principal) =
            (RateLimiters::default(), Principal { rate: Some(4.0), ..Principal::default() });
        rate_limiters.charge(principal, 7).expect("a full bucket");
        rate_limiters
            .charge(principal, 1 << 20)
            .expect("one token is left, and the last request may overdraw");
        let wait = rate_limiters.charge(principal, 1).expect_err("it is overdrawn");
        assert!((wait - f64::from(1 << 18)).abs() < 1e4, "{wait}");
        let other = Principal { tenant: TenantId(2), ..principal };
        rate_limiters.refund(other, 1);
        rate_limiters.charge(other, 1).expect("every key has a bucket of its own");
        let unlimited = Principal { rate: None, ..principal };
        rate_limiters.charge(unlimited, usize::MAX).expect("a key without a rate has no limit");
    }

    #[test]
    fn an_empty_bucket_refuses() {
        let now = Instant::now();
        let bucket = TokenBucket { tokens: 0.0, since: now };
        assert_eq!(bucket.charged(10.0, 1, now), Err(0.0));
        let bucket = TokenBucket { tokens: -5.0, since: now };
        assert_eq!(bucket.charged(10.0, 0, now), Err(0.5));
    }
}
