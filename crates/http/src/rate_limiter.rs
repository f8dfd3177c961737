//! Rate limits: one token bucket per tenant, in model tokens per second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::keys::{Principal, TenantId};

/// Capacity of a bucket, in seconds of its rate.
const BURST_SECONDS: f64 = 2.0;

/// The token buckets of all tenants.
#[derive(Default)]
pub(crate) struct RateLimiters {
    buckets: Mutex<HashMap<TenantId, TokenBucket>>,
}

/// The token bucket of one tenant. A large request may overdraw it; the balance is then negative.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenBucket {
    tokens: f64,
    updated: Instant,
}

impl RateLimiters {
    /// Takes `tokens` from the bucket of a tenant. The error is the number of seconds until the bucket is no longer empty.
    pub(crate) fn charge(&self, principal: Principal, tokens: usize) -> Result<(), f64> {
        let Some(rate) = principal.rate else { return Ok(()) };
        let now = Instant::now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(principal.tenant).or_insert(TokenBucket::full(rate, now));
        *bucket = bucket.charged(rate, tokens, now)?;
        Ok(())
    }

    /// Takes `tokens` from the bucket of a tenant, even if it is empty.
    pub(crate) fn debit(&self, principal: Principal, tokens: usize) {
        let Some(rate) = principal.rate else { return };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = buckets.entry(principal.tenant).or_insert(TokenBucket::full(rate, Instant::now()));
        bucket.tokens -= tokens as f64;
    }

    /// Returns tokens that were charged for work that was then refused.
    pub(crate) fn refund(&self, principal: Principal, tokens: usize) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get_mut(&principal.tenant) {
            bucket.tokens += tokens as f64;
        }
    }
}

impl TokenBucket {
    fn full(rate: f64, now: Instant) -> TokenBucket {
        TokenBucket { tokens: BURST_SECONDS * rate, updated: now }
    }

    /// Refills the bucket up to `now` and takes `tokens`.
    fn charged(self, rate: f64, tokens: usize, now: Instant) -> Result<TokenBucket, f64> {
        let refill = rate * now.saturating_duration_since(self.updated).as_secs_f64();
        let balance = (self.tokens + refill).min(BURST_SECONDS * rate);
        if balance <= 0.0 {
            return Err(-balance / rate);
        }
        Ok(TokenBucket { tokens: balance - tokens as f64, updated: now })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn refunded_tokens_cost_nothing() {
        let (rate_limiters, principal) =
            (RateLimiters::default(), Principal { rate: Some(0.001), ..Principal::default() });
        for _ in 0..50 {
            rate_limiters.charge(principal, 1000).expect("the bucket is not empty");
            rate_limiters.refund(principal, 1000);
        }
    }

    #[test]
    fn work_that_is_done_overdraws_an_empty_bucket() {
        let (rate_limiters, principal) =
            (RateLimiters::default(), Principal { rate: Some(100.0), ..Principal::default() });
        for _ in 0..3 {
            rate_limiters.debit(principal, 10_000);
        }
        let wait = rate_limiters.charge(principal, 0).expect_err("the bucket is empty");
        assert!((250.0..300.0).contains(&wait), "{wait}");
    }

    #[test]
    fn a_key_uses_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let bucket = TokenBucket { tokens: 200.0, updated: start };
        let bucket = bucket.charged(100.0, 250, at(0)).expect("the bucket is not empty");
        let wait = bucket.charged(100.0, 1, at(100)).expect_err("forty tokens are overdrawn");
        assert!((wait - 0.4).abs() < 1e-6, "{wait}");
        let bucket = bucket.charged(100.0, 10, at(600)).expect("ten tokens are left");
        assert!(bucket.tokens.abs() < 1e-6);
        let bucket = bucket.charged(100.0, 0, at(60_000)).expect("the bucket is full");
        assert!((bucket.tokens - 200.0).abs() < 1e-6);
    }

    #[test]
    fn a_bucket_starts_with_two_seconds_of_its_rate_and_may_be_overdrawn() {
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
        let bucket = TokenBucket { tokens: 0.0, updated: now };
        assert_eq!(bucket.charged(10.0, 1, now), Err(0.0));
        let bucket = TokenBucket { tokens: -5.0, updated: now };
        assert_eq!(bucket.charged(10.0, 0, now), Err(0.5));
    }
}
