//! The eviction policy: whether a model fits into the memory limit, and which model is evicted first. Pure functions.

use std::time::{Duration, Instant};

/// Minimum time between load and eviction, which prevents thrashing between two models.
const MIN_RESIDENCY: Duration = Duration::from_secs(1);

/// A loaded model, which may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvictionCandidate {
    /// Index of its slot.
    pub(crate) slot: usize,
    pub(crate) loaded_at: Instant,
    /// Time of its last request.
    pub(crate) last_used: Instant,
}

/// The decision on a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Load it.
    Load,
    /// Evict the model of this slot and decide again.
    Evict(usize),
    /// No model may be evicted yet: decide again after this time.
    Wait(Duration),
    /// The model exceeds the limit even alone.
    Never,
}

/// Decides whether a model of `bytes` may be loaded within `limit`. `resident` is the memory of the process, `provers` that
/// of prover processes, and `baseline` that of the process without models.
pub(crate) fn admit(
    limit: Option<u64>,
    resident: u64,
    provers: u64,
    baseline: u64,
    bytes: u64,
    loaded: &[EvictionCandidate],
    now: Instant,
) -> Admission {
    let Some(limit) = limit else { return Admission::Load };
    if resident + provers + bytes <= limit {
        return Admission::Load;
    }
    // Memory that unloaded models did not return to the system is reused by the next one.
    let alone = if loaded.is_empty() { resident.min(baseline) } else { baseline };
    if alone + bytes > limit {
        return Admission::Never;
    }
    if loaded.is_empty() {
        // Provers end on their own.
        return if alone + provers + bytes <= limit {
            Admission::Load
        } else {
            Admission::Wait(MIN_RESIDENCY)
        };
    }
    let is_evictable =
        |model: &&EvictionCandidate| now.saturating_duration_since(model.loaded_at) >= MIN_RESIDENCY;
    if let Some(model) = loaded.iter().filter(is_evictable).min_by_key(|model| model.last_used) {
        return Admission::Evict(model.slot);
    }
    let remaining = loaded
        .iter()
        .map(|model| MIN_RESIDENCY.saturating_sub(now.saturating_duration_since(model.loaded_at)));
    Admission::Wait(remaining.min().unwrap_or(MIN_RESIDENCY))
}

/// The model to evict if memory exceeds the limit: the least recently used one, but never the only one.
pub(crate) fn evict_over_limit(
    limit: Option<u64>,
    resident: u64,
    loaded: &[EvictionCandidate],
) -> Option<usize> {
    let over = limit.is_some_and(|limit| resident > limit);
    if !over || loaded.len() < 2 {
        return None;
    }
    loaded.iter().min_by_key(|model| model.last_used).map(|model| model.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(now: Instant, ages: &[(u64, u64)]) -> Vec<EvictionCandidate> {
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).expect("the machine is older");
        let model = |(slot, &(loaded_at, last_used)): (usize, &(u64, u64))| EvictionCandidate {
            slot,
            loaded_at: ago(loaded_at),
            last_used: ago(last_used),
        };
        ages.iter().enumerate().map(model).collect()
    }

    #[test]
    fn the_least_recently_used_model_is_evicted_and_no_model_that_was_just_loaded() {
        let now = Instant::now();
        let two = loaded(now, &[(50, 3), (40, 9)]);
        assert_eq!(admit(None, 900, 0, 100, 900, &two, now), Admission::Load);
        assert_eq!(admit(Some(1000), 600, 0, 100, 400, &two, now), Admission::Load);
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &two, now), Admission::Evict(1));
        assert_eq!(
            admit(Some(1000), 900, 0, 100, 900, &two, now),
            Admission::Evict(1),
            "alone it fits exactly"
        );
        assert_eq!(admit(Some(1000), 900, 0, 100, 901, &two, now), Admission::Never);
        assert_eq!(
            admit(Some(1000), 700, 0, 100, 400, &[], now),
            Admission::Load,
            "resident memory is reused"
        );
        assert_eq!(admit(Some(1000), 100, 0, 100, 901, &[], now), Admission::Never);
        let fresh = loaded(now, &[(0, 0), (40, 1)]);
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &fresh, now), Admission::Evict(1));
        let all = loaded(now, &[(0, 0), (0, 0)]);
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &all, now), Admission::Wait(MIN_RESIDENCY));
    }

    #[test]
    fn prover_memory_counts_and_is_waited_for() {
        let now = Instant::now();
        let two = loaded(now, &[(50, 3), (40, 9)]);
        assert_eq!(admit(Some(1000), 500, 100, 100, 400, &two, now), Admission::Load);
        assert_eq!(admit(Some(1000), 500, 101, 100, 400, &two, now), Admission::Evict(1));
        assert_eq!(admit(Some(1000), 100, 500, 100, 400, &[], now), Admission::Load);
        assert_eq!(admit(Some(1000), 100, 501, 100, 400, &[], now), Admission::Wait(MIN_RESIDENCY));
        assert_eq!(admit(Some(1000), 100, 501, 100, 901, &[], now), Admission::Never);
        assert_eq!(admit(None, 100, 5000, 100, 901, &[], now), Admission::Load);
    }

    #[test]
    fn over_the_limit_all_models_but_one_may_be_evicted() {
        let now = Instant::now();
        let two = loaded(now, &[(50, 3), (40, 9)]);
        assert_eq!(evict_over_limit(Some(1000), 1001, &two), Some(1));
        assert_eq!(evict_over_limit(Some(1000), 1000, &two), None);
        assert_eq!(evict_over_limit(Some(1000), 1001, &two[..1]), None);
        assert_eq!(evict_over_limit(None, 1001, &two), None);
    }

    #[test]
    fn a_model_that_just_fits_is_loaded_and_one_byte_more_is_not() {
        let now = Instant::now();
        let one = loaded(now, &[(50, 3)]);
        assert_eq!(admit(Some(1000), 600, 0, 100, 401, &one, now), Admission::Evict(0));
        assert_eq!(admit(Some(1000), 950, 0, 100, 900, &one, now), Admission::Evict(0), "alone it just fits");
        assert_eq!(admit(Some(1000), 100, 0, 100, 900, &[], now), Admission::Load);
        assert_eq!(
            admit(Some(1000), 50, 0, 100, 950, &[], now),
            Admission::Load,
            "by the resident memory of now"
        );
        // A model may be evicted once its minimum residency has passed.
        let ago = |time: Duration| now.checked_sub(time).expect("the machine is older");
        let model = |slot, age| EvictionCandidate { slot, loaded_at: ago(age), last_used: now };
        let evictable = [model(3, MIN_RESIDENCY)];
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &evictable, now), Admission::Evict(3));
        let moment = Duration::from_millis(1);
        let fresh = [model(3, MIN_RESIDENCY.checked_sub(moment).expect("longer")), model(4, Duration::ZERO)];
        assert_eq!(
            admit(Some(1000), 900, 0, 100, 400, &fresh, now),
            Admission::Wait(moment),
            "until the first is evictable"
        );
    }
}
