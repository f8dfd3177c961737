//! What each owner holds of something that there is only so much of. Who holds less than a fair share may always have
//! more, however much the others hold.

use crate::keys::Owner;

/// What each owner holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    of: Vec<(Owner, usize)>,
}

impl Shares {
    /// Adds and takes away what an owner holds.
    pub(crate) fn weigh(&mut self, owner: Owner, more: usize, less: usize) {
        match self.of.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, held)) => *held = (*held + more).saturating_sub(less),
            None => self.of.push((owner, more)),
        }
        self.of.retain(|(_, held)| *held > 0);
    }

    /// What all hold together.
    pub(crate) fn all(&self) -> usize {
        self.of.iter().map(|(_, held)| held).sum()
    }

    /// Whether an owner may have so much more: where nobody holds anything, within `most`, or within its share of it.
    pub(crate) fn has_room(&self, owner: Owner, more: usize, most: usize) -> bool {
        let all = self.all();
        let own = self.of.iter().find(|(known, _)| *known == owner).map_or(0, |(_, held)| *held);
        let owners = self.of.len() + usize::from(own == 0);
        all == 0 || all + more <= most || owners > 1 && (own == 0 || own + more <= most / owners)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_floods_leaves_room_for_the_others() {
        let (one, two) = (Owner(1), Owner(2));
        let mut shares = Shares::default();
        assert!(shares.has_room(one, 500, 100), "what is alone has room");
        shares.weigh(one, 120, 0);
        assert!(!shares.has_room(one, 1, 100));
        assert!(shares.has_room(two, 70, 100), "who has nothing has room");
        shares.weigh(two, 30, 0);
        assert!(shares.has_room(two, 20, 100) && !shares.has_room(two, 30, 100));
        shares.weigh(two, 0, 30);
        assert_eq!(shares, Shares { of: vec![(one, 120)] });
    }

    #[test]
    fn room_ends_at_its_exact_bounds() {
        let shares = |held: &[(u64, usize)]| {
            let mut shares = Shares::default();
            for &(owner, bytes) in held {
                shares.weigh(Owner(owner), bytes, 0);
            }
            shares
        };
        for (held, owner, more, expected) in [
            // Nobody holds anything.
            (&[][..], 1, 1000, true),
            // Alone: up to the limit.
            (&[(1, 60)], 1, 40, true),
            (&[(1, 60)], 1, 41, false),
            // A second tenant: anything at first, then half.
            (&[(1, 60)], 2, 1000, true),
            (&[(1, 90), (2, 20)], 2, 30, true),
            (&[(1, 90), (2, 20)], 2, 31, false),
            (&[(1, 90), (2, 20)], 1, 1, false),
            // A third tenant: a third.
            (&[(1, 90), (2, 20), (3, 30)], 2, 13, true),
            (&[(1, 90), (2, 20), (3, 30)], 2, 14, false),
            (&[(1, 90), (2, 20), (3, 30)], 3, 4, false),
        ] {
            let room = shares(held).has_room(Owner(owner), more, 100);
            assert_eq!(room, expected, "{more} more for {owner} beside {held:?}");
        }
    }

    #[test]
    fn what_is_held_is_added_up_and_never_negative() {
        let mut shares = Shares::default();
        shares.weigh(Owner(1), 10, 0);
        shares.weigh(Owner(2), 5, 0);
        shares.weigh(Owner(1), 7, 3);
        assert_eq!((shares.all(), &shares.of), (19, &vec![(Owner(1), 14), (Owner(2), 5)]));
        shares.weigh(Owner(1), 0, 20);
        assert_eq!((shares.all(), &shares.of), (5, &vec![(Owner(2), 5)]));
        shares.weigh(Owner(3), 0, 0);
        assert_eq!(shares.of.len(), 1, "who holds nothing is not listed");
    }
}
