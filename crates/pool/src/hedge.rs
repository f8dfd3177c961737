//! When to send a second copy of a slow request to another worker, and how many such hedges are allowed.

use std::time::Duration;

use crate::size::SizeClass;

/// Hedges are at most one in this many requests.
const REQUESTS_PER_HEDGE: u32 = 10;
/// Maximum number of hedges that are saved up.
const MAX_SAVED: u32 = 15;
/// Hedges that are saved for urgent requests: if all clients of a gateway wait for a worker that hangs, they send nothing
/// that pays for more.
const RESERVED: u32 = 5;
/// Minimum number of samples before requests are hedged.
const MIN_SAMPLES: u32 = 50;
/// At this many samples all counts are halved, so that newer samples weigh more.
const MAX_SAMPLES: u32 = 2048;
/// Minimum time before a hedge.
const MIN_DELAY: Duration = Duration::from_millis(2);
/// Buckets of a histogram for each doubling of the ratio.
const BUCKETS_PER_DOUBLING: f64 = 4.0;
/// The ratio of the first bucket, as a power of two.
const FIRST_POWER: f64 = -8.0;
/// Number of buckets: ratios from 1/256 to 256.
const BUCKETS: usize = 64;

/// Decides on hedges. A request is hedged once it takes longer than 95 % of the requests of its size class did, in
/// proportion to its prediction.
#[derive(Debug, Default)]
pub struct Hedger {
    ratios: [Histogram; 3],
    /// Requests that pay for hedges.
    saved: u32,
}

impl Hedger {
    /// Counts a request, hedged or not.
    pub fn request(&mut self) {
        self.saved = (self.saved + 1).min(MAX_SAVED * REQUESTS_PER_HEDGE);
    }

    /// How long to wait for an answer before a hedge: the 95th percentile of the duration. `None` if too little is
    /// known.
    pub fn delay(&self, size: SizeClass, predicted: Duration) -> Option<Duration> {
        let ratio = self.ratios[size as usize].quantile(0.95)?;
        let seconds = predicted.as_secs_f64() * ratio;
        Some(Duration::try_from_secs_f64(seconds).ok()?.max(MIN_DELAY))
    }

    /// Whether a hedge may be sent now. Takes its share of the allowance; what is reserved is for urgent requests.
    pub fn try_hedge(&mut self, is_urgent: bool) -> bool {
        let reserved = if is_urgent { 0 } else { RESERVED };
        let is_allowed = self.saved >= (reserved + 1) * REQUESTS_PER_HEDGE;
        if is_allowed {
            self.saved -= REQUESTS_PER_HEDGE;
        }
        is_allowed
    }

    /// Returns the share of a hedge that was not sent.
    pub fn refund(&mut self) {
        self.saved = (self.saved + REQUESTS_PER_HEDGE).min(MAX_SAVED * REQUESTS_PER_HEDGE);
    }

    /// Takes the duration of a request that was answered.
    pub fn record(&mut self, size: SizeClass, predicted: Duration, actual: Duration) {
        let ratio = actual.as_secs_f64() / predicted.as_secs_f64().max(1e-6);
        self.ratios[size as usize].record(ratio);
    }
}

/// Counts by logarithm of the ratio of actual to predicted duration.
#[derive(Debug)]
struct Histogram {
    counts: [u32; BUCKETS],
    all: u32,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: [0; BUCKETS], all: 0 }
    }
}

impl Histogram {
    fn record(&mut self, ratio: f64) {
        let at = (ratio.log2() - FIRST_POWER) * BUCKETS_PER_DOUBLING;
        // A ratio of 0 is in the first bucket.
        self.counts[(at.max(0.0) as usize).min(BUCKETS - 1)] += 1;
        self.all += 1;
        if self.all >= MAX_SAMPLES {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.all = self.counts.iter().sum();
        }
    }

    /// The upper end of the bucket of a quantile.
    fn quantile(&self, quantile: f64) -> Option<f64> {
        if self.all < MIN_SAMPLES {
            return None;
        }
        let mut below = 0;
        let at = self.counts.iter().position(|count| {
            below += count;
            f64::from(below) >= quantile * f64::from(self.all)
        })?;
        Some((FIRST_POWER + (at + 1) as f64 / BUCKETS_PER_DOUBLING).exp2())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PREDICTED: Duration = Duration::from_millis(100);

    #[test]
    fn a_hedge_waits_for_the_95th_percentile_of_its_size() {
        let mut hedger = Hedger::default();
        for sample in 1..=1000 {
            assert_eq!(hedger.delay(SizeClass::Small, PREDICTED).is_some(), sample > MIN_SAMPLES, "{sample}");
            hedger.record(SizeClass::Small, PREDICTED, Duration::from_millis(u64::from(sample % 100) * 4));
        }
        let delay = hedger.delay(SizeClass::Small, PREDICTED).unwrap().as_secs_f64();
        assert!((0.38..0.38 * 1.2).contains(&delay), "{delay}");
        let longer = hedger.delay(SizeClass::Small, PREDICTED * 10).unwrap().as_secs_f64();
        assert!((longer / delay - 10.0).abs() < 1e-6, "in proportion to the prediction");
        assert_eq!(hedger.delay(SizeClass::Large, PREDICTED), None);
        assert_eq!(hedger.delay(SizeClass::Small, Duration::ZERO), Some(MIN_DELAY));
    }

    #[test]
    fn the_percentile_follows_newer_samples() {
        let mut hedger = Hedger::default();
        for _ in 0..10_000 {
            hedger.record(SizeClass::Small, PREDICTED, PREDICTED * 50);
        }
        for _ in 0..10_000 {
            hedger.record(SizeClass::Small, PREDICTED, PREDICTED);
        }
        assert!(hedger.delay(SizeClass::Small, PREDICTED).unwrap() < PREDICTED * 2);
    }

    #[test]
    fn extreme_durations_are_counted() {
        let mut hedger = Hedger::default();
        for _ in 0..50 {
            hedger.record(SizeClass::Small, Duration::ZERO, Duration::MAX);
            hedger.record(SizeClass::Small, Duration::MAX, Duration::ZERO);
        }
        assert!(hedger.delay(SizeClass::Small, PREDICTED).unwrap() > PREDICTED * 200);
        assert_eq!(hedger.delay(SizeClass::Small, Duration::MAX), None, "beyond the range of a duration");
    }

    proptest! {
        #[test]
        fn hedges_stay_within_a_tenth_of_requests(wanted in prop::collection::vec(any::<Option<bool>>(), 0..2000)) {
            let mut hedger = Hedger::default();
            let (mut requests, mut hedges) = (0, 0);
            for hedge in wanted {
                if let Some(is_urgent) = hedge {
                    hedges += u32::from(hedger.try_hedge(is_urgent));
                } else {
                    hedger.request();
                    requests += 1;
                }
                prop_assert!(hedges * 10 <= requests, "{hedges} of {requests}");
            }
        }
    }

    #[test]
    fn the_allowance_is_used_and_bounded() {
        let mut hedger = Hedger::default();
        assert!(!hedger.try_hedge(true));
        (0..10).for_each(|_| hedger.request());
        assert!(!hedger.try_hedge(false), "it is reserved");
        assert!(hedger.try_hedge(true));
        assert!(!hedger.try_hedge(true));
        hedger.refund();
        assert!(hedger.try_hedge(true));
        assert!(!hedger.try_hedge(true));
        (0..100_000).for_each(|_| hedger.request());
        hedger.refund();
        let allowed =
            [false, true].map(|is_urgent| (0..1000).filter(|_| hedger.try_hedge(is_urgent)).count());
        assert_eq!(allowed, [10, 5]);
    }
}
