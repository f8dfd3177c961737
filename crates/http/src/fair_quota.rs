//! What each tenant holds of something that there is only so much of. Who holds less than a fair share may always have
//! more, however much the others hold.

use crate::keys::TenantId;

/// What each tenant holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FairQuota {
    of: Vec<(TenantId, usize)>,
}

impl FairQuota {
    /// Adds and takes away what an tenant holds.
    pub fn weigh(&mut self, tenant: TenantId, more: usize, less: usize) {
        match self.of.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, held)) => *held = (*held + more).saturating_sub(less),
            None => self.of.push((tenant, more)),
        }
        self.of.retain(|(_, held)| *held > 0);
    }

    /// What all hold together.
    pub fn all(&self) -> usize {
        self.of.iter().map(|(_, held)| held).sum()
    }

    /// Whether an tenant may have so much more: where nobody holds anything, within `most`, or within its share of it.
    pub fn has_room(&self, tenant: TenantId, more: usize, most: usize) -> bool {
        let all = self.all();
        let own = self.of.iter().find(|(known, _)| *known == tenant).map_or(0, |(_, held)| *held);
        let tenants = self.of.len() + usize::from(own == 0);
        all == 0 || all + more <= most || tenants > 1 && (own == 0 || own + more <= most / tenants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_floods_leaves_room_for_the_others() {
        let (one, two) = (TenantId(1), TenantId(2));
        let mut quota = FairQuota::default();
        assert!(quota.has_room(one, 500, 100), "what is alone has room");
        quota.weigh(one, 120, 0);
        assert!(!quota.has_room(one, 1, 100));
        assert!(quota.has_room(two, 70, 100), "who has nothing has room");
        quota.weigh(two, 30, 0);
        assert!(quota.has_room(two, 20, 100) && !quota.has_room(two, 30, 100));
        quota.weigh(two, 0, 30);
        assert_eq!(quota, FairQuota { of: vec![(one, 120)] });
    }

    #[test]
    fn room_ends_at_its_exact_bounds() {
        let quota = |held: &[(u64, usize)]| {
            let mut quota = FairQuota::default();
            for &(tenant, bytes) in held {
                quota.weigh(TenantId(tenant), bytes, 0);
            }
            quota
        };
        for (held, tenant, more, expected) in [
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
            let room = quota(held).has_room(TenantId(tenant), more, 100);
            assert_eq!(room, expected, "{more} more for {tenant} beside {held:?}");
        }
    }

    #[test]
    fn what_is_held_is_added_up_and_never_negative() {
        let mut quota = FairQuota::default();
        quota.weigh(TenantId(1), 10, 0);
        quota.weigh(TenantId(2), 5, 0);
        quota.weigh(TenantId(1), 7, 3);
        assert_eq!((quota.all(), &quota.of), (19, &vec![(TenantId(1), 14), (TenantId(2), 5)]));
        quota.weigh(TenantId(1), 0, 20);
        assert_eq!((quota.all(), &quota.of), (5, &vec![(TenantId(2), 5)]));
        quota.weigh(TenantId(3), 0, 0);
        assert_eq!(quota.of.len(), 1, "who holds nothing is not listed");
    }
}
