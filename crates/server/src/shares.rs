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
}
