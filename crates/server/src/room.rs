//! Whether there is room for a model, and who goes where there is none: a pure function of what was measured.

use std::time::{Duration, Instant};

/// How long a model stays at least, so that two that take turns do more than come and go.
const STAY: Duration = Duration::from_secs(1);

/// A model that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guest {
    /// Which.
    pub(crate) slot: usize,
    /// Since when it serves.
    pub(crate) since: Instant,
    /// When it was last asked.
    pub(crate) asked: Instant,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Load it.
    Enough,
    /// First unload the model of this slot.
    Unload(usize),
    /// Everybody has just come: look again after this.
    Wait(Duration),
    /// It does not fit even alone.
    Never,
}

/// Whether a model that needs `need` bytes more than `resident` may be loaded under `limit`, of which prover children
/// have `provers`; `empty` is what the process takes without any model.
pub(crate) fn room(
    limit: Option<u64>,
    resident: u64,
    provers: u64,
    empty: u64,
    need: u64,
    guests: &[Guest],
    now: Instant,
) -> Room {
    let Some(limit) = limit else { return Room::Enough };
    if resident + provers + need <= limit {
        return Room::Enough;
    }
    // What was not given back by those that left is used again, and the last guess is no reason to refuse.
    let alone = if guests.is_empty() { resident.min(empty) } else { empty };
    if alone + need > limit {
        return Room::Never;
    }
    if guests.is_empty() {
        // Provers end by themselves.
        return if alone + provers + need <= limit { Room::Enough } else { Room::Wait(STAY) };
    }
    let stays = |guest: &&Guest| now.saturating_duration_since(guest.since) >= STAY;
    if let Some(guest) = guests.iter().filter(stays).min_by_key(|guest| guest.asked) {
        return Room::Unload(guest.slot);
    }
    let left = guests.iter().map(|guest| STAY.saturating_sub(now.saturating_duration_since(guest.since)));
    Room::Wait(left.min().unwrap_or(STAY))
}

/// Who goes where too much is in use already: the one that was asked longest ago, but never the only one.
pub(crate) fn too_much(limit: Option<u64>, resident: u64, guests: &[Guest]) -> Option<usize> {
    let over = limit.is_some_and(|limit| resident > limit);
    if !over || guests.len() < 2 {
        return None;
    }
    guests.iter().min_by_key(|guest| guest.asked).map(|guest| guest.slot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(now: Instant, ages: &[(u64, u64)]) -> Vec<Guest> {
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds)).expect("the machine is older");
        let guest = |(slot, &(since, asked)): (usize, &(u64, u64))| Guest {
            slot,
            since: ago(since),
            asked: ago(asked),
        };
        ages.iter().enumerate().map(guest).collect()
    }

    #[test]
    fn the_one_that_was_asked_longest_ago_goes_and_nobody_who_has_just_come() {
        let now = Instant::now();
        let two = guests(now, &[(50, 3), (40, 9)]);
        assert_eq!(room(None, 900, 0, 100, 900, &two, now), Room::Enough);
        assert_eq!(room(Some(1000), 600, 0, 100, 400, &two, now), Room::Enough);
        assert_eq!(room(Some(1000), 900, 0, 100, 400, &two, now), Room::Unload(1));
        assert_eq!(room(Some(1000), 900, 0, 100, 900, &two, now), Room::Unload(1), "alone it fits exactly");
        assert_eq!(room(Some(1000), 900, 0, 100, 901, &two, now), Room::Never);
        assert_eq!(room(Some(1000), 700, 0, 100, 400, &[], now), Room::Enough, "what is there is used again");
        assert_eq!(room(Some(1000), 100, 0, 100, 901, &[], now), Room::Never);
        let fresh = guests(now, &[(0, 0), (40, 1)]);
        assert_eq!(room(Some(1000), 900, 0, 100, 400, &fresh, now), Room::Unload(1));
        let all = guests(now, &[(0, 0), (0, 0)]);
        assert_eq!(room(Some(1000), 900, 0, 100, 400, &all, now), Room::Wait(STAY));
    }

    #[test]
    fn what_prover_children_have_counts_and_is_waited_for() {
        let now = Instant::now();
        let two = guests(now, &[(50, 3), (40, 9)]);
        assert_eq!(room(Some(1000), 500, 100, 100, 400, &two, now), Room::Enough);
        assert_eq!(room(Some(1000), 500, 101, 100, 400, &two, now), Room::Unload(1));
        assert_eq!(room(Some(1000), 100, 500, 100, 400, &[], now), Room::Enough);
        assert_eq!(room(Some(1000), 100, 501, 100, 400, &[], now), Room::Wait(STAY));
        assert_eq!(room(Some(1000), 100, 501, 100, 901, &[], now), Room::Never);
        assert_eq!(room(None, 100, 5000, 100, 901, &[], now), Room::Enough);
    }

    #[test]
    fn where_too_much_is_in_use_all_but_one_may_have_to_go() {
        let now = Instant::now();
        let two = guests(now, &[(50, 3), (40, 9)]);
        assert_eq!(too_much(Some(1000), 1001, &two), Some(1));
        assert_eq!(too_much(Some(1000), 1000, &two), None);
        assert_eq!(too_much(Some(1000), 1001, &two[..1]), None);
        assert_eq!(too_much(None, 1001, &two), None);
    }

    #[test]
    fn what_just_fits_is_loaded_and_one_byte_more_is_not() {
        let now = Instant::now();
        let one = guests(now, &[(50, 3)]);
        assert_eq!(room(Some(1000), 600, 0, 100, 401, &one, now), Room::Unload(0));
        assert_eq!(room(Some(1000), 950, 0, 100, 900, &one, now), Room::Unload(0), "alone it just fits");
        assert_eq!(room(Some(1000), 100, 0, 100, 900, &[], now), Room::Enough);
        assert_eq!(room(Some(1000), 50, 0, 100, 950, &[], now), Room::Enough, "by what is in use now");
        // Whoever has been there for as long as models stay at least may go.
        let ago = |time: Duration| now.checked_sub(time).expect("the machine is older");
        let guest = |slot, age| Guest { slot, since: ago(age), asked: now };
        let stayed = [guest(3, STAY)];
        assert_eq!(room(Some(1000), 900, 0, 100, 400, &stayed, now), Room::Unload(3));
        let moment = Duration::from_millis(1);
        let fresh = [guest(3, STAY.checked_sub(moment).expect("longer")), guest(4, Duration::ZERO)];
        assert_eq!(
            room(Some(1000), 900, 0, 100, 400, &fresh, now),
            Room::Wait(moment),
            "until the first may go"
        );
    }
}
