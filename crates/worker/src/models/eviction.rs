//! Whether there is room for a model, and who goes where there is none: a pure function of what was measured.

use std::time::{Duration, Instant};

/// How long a model stays at least, so that two that take turns do more than come and go.
const STAY: Duration = Duration::from_secs(1);

/// A model that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadedModel {
    /// Which.
    pub(crate) slot: usize,
    /// Since when it serves.
    pub(crate) since: Instant,
    /// When it was last asked.
    pub(crate) asked: Instant,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Load it.
    Load,
    /// First unload the model of this slot.
    Evict(usize),
    /// Everybody has just come: look again after this.
    Wait(Duration),
    /// It does not fit even alone.
    Never,
}

/// Whether a model that needs `need` bytes more than `resident` may be loaded under `limit`, of which prover children
/// have `provers`; `empty` is what the process takes without any model.
pub(crate) fn admit(
    limit: Option<u64>,
    resident: u64,
    provers: u64,
    empty: u64,
    need: u64,
    loaded: &[LoadedModel],
    now: Instant,
) -> Admission {
    let Some(limit) = limit else { return Admission::Load };
    if resident + provers + need <= limit {
        return Admission::Load;
    }
    // What was not given back by those that left is used again, and the last guess is no reason to refuse.
    let alone = if loaded.is_empty() { resident.min(empty) } else { empty };
    if alone + need > limit {
        return Admission::Never;
    }
    if loaded.is_empty() {
        // Provers end by themselves.
        return if alone + provers + need <= limit { Admission::Load } else { Admission::Wait(STAY) };
    }
    let stays = |model: &&LoadedModel| now.saturating_duration_since(model.since) >= STAY;
    if let Some(model) = loaded.iter().filter(stays).min_by_key(|model| model.asked) {
        return Admission::Evict(model.slot);
    }
    let left = loaded.iter().map(|model| STAY.saturating_sub(now.saturating_duration_since(model.since)));
    Admission::Wait(left.min().unwrap_or(STAY))
}

/// Who goes where too much is in use already: the one that was asked longest ago, but never the only one.
pub(crate) fn too_much(limit: Option<u64>, resident: u64, loaded: &[LoadedModel]) -> Option<usize> {
    let over = limit.is_some_and(|limit| resident > limit);
    if !over || loaded.len() < 2 {
        return None;
    }
    loaded.iter().min_by_key(|model| model.asked).map(|model| model.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(now: Instant, ages: &[(u64, u64)]) -> Vec<LoadedModel> {
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).expect("the machine is older");
        let model = |(slot, &(since, asked)): (usize, &(u64, u64))| LoadedModel {
            slot,
            since: ago(since),
            asked: ago(asked),
        };
        ages.iter().enumerate().map(model).collect()
    }

    #[test]
    fn the_one_that_was_asked_longest_ago_goes_and_nobody_who_has_just_come() {
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
            "what is there is used again"
        );
        assert_eq!(admit(Some(1000), 100, 0, 100, 901, &[], now), Admission::Never);
        let fresh = loaded(now, &[(0, 0), (40, 1)]);
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &fresh, now), Admission::Evict(1));
        let all = loaded(now, &[(0, 0), (0, 0)]);
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &all, now), Admission::Wait(STAY));
    }

    #[test]
    fn what_prover_children_have_counts_and_is_waited_for() {
        let now = Instant::now();
        let two = loaded(now, &[(50, 3), (40, 9)]);
        assert_eq!(admit(Some(1000), 500, 100, 100, 400, &two, now), Admission::Load);
        assert_eq!(admit(Some(1000), 500, 101, 100, 400, &two, now), Admission::Evict(1));
        assert_eq!(admit(Some(1000), 100, 500, 100, 400, &[], now), Admission::Load);
        assert_eq!(admit(Some(1000), 100, 501, 100, 400, &[], now), Admission::Wait(STAY));
        assert_eq!(admit(Some(1000), 100, 501, 100, 901, &[], now), Admission::Never);
        assert_eq!(admit(None, 100, 5000, 100, 901, &[], now), Admission::Load);
    }

    #[test]
    fn where_too_much_is_in_use_all_but_one_may_have_to_go() {
        let now = Instant::now();
        let two = loaded(now, &[(50, 3), (40, 9)]);
        assert_eq!(too_much(Some(1000), 1001, &two), Some(1));
        assert_eq!(too_much(Some(1000), 1000, &two), None);
        assert_eq!(too_much(Some(1000), 1001, &two[..1]), None);
        assert_eq!(too_much(None, 1001, &two), None);
    }

    #[test]
    fn what_just_fits_is_loaded_and_one_byte_more_is_not() {
        let now = Instant::now();
        let one = loaded(now, &[(50, 3)]);
        assert_eq!(admit(Some(1000), 600, 0, 100, 401, &one, now), Admission::Evict(0));
        assert_eq!(admit(Some(1000), 950, 0, 100, 900, &one, now), Admission::Evict(0), "alone it just fits");
        assert_eq!(admit(Some(1000), 100, 0, 100, 900, &[], now), Admission::Load);
        assert_eq!(admit(Some(1000), 50, 0, 100, 950, &[], now), Admission::Load, "by what is in use now");
        // Whoever has been there for as long as models stay at least may go.
        let ago = |time: Duration| now.checked_sub(time).expect("the machine is older");
        let model = |slot, age| LoadedModel { slot, since: ago(age), asked: now };
        let stayed = [model(3, STAY)];
        assert_eq!(admit(Some(1000), 900, 0, 100, 400, &stayed, now), Admission::Evict(3));
        let moment = Duration::from_millis(1);
        let fresh = [model(3, STAY.checked_sub(moment).expect("longer")), model(4, Duration::ZERO)];
        assert_eq!(
            admit(Some(1000), 900, 0, 100, 400, &fresh, now),
            Admission::Wait(moment),
            "until the first may go"
        );
    }
}
