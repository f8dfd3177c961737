//! Fair sharing of a limited resource between tenants. A tenant below its fair share is always admitted, regardless of
//! the usage of other tenants.

use crate::keys::TenantId;

/// The usage of each tenant.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FairQuota {
    usage: Vec<(TenantId, usize)>,
}

impl FairQuota {
    /// Adds `acquired` to the usage of a tenant and subtracts `released`.
    pub fn adjust(&mut self, tenant: TenantId, acquired: usize, released: usize) {
        match self.usage.iter_mut().find(|(known, _)| *known == tenant) {
            Some((_, held)) => *held = (*held + acquired).saturating_sub(released),
            None => self.usage.push((tenant, acquired)),
        }
        self.usage.retain(|(_, held)| *held > 0);
    }

    /// The usage of all tenants.
    pub fn total(&self) -> usize {
        self.usage.iter().map(|(_, held)| held).sum()
    }

    /// Whether a tenant may acquire `amount`. A tenant without usage is admitted with any amount; otherwise the total must
    /// stay within `limit` or the tenant within its fair share of it.
    pub fn admits(&self, tenant: TenantId, amount: usize, limit: usize) -> bool {
        let own = self.usage.iter().find(|(known, _)| *known == tenant).map_or(0, |(_, held)| *held);
        own == 0 || self.total() + amount <= limit || own + amount <= limit / self.usage.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooding_tenant_leaves_the_others_their_share() {
        let (one, two) = (TenantId(1), TenantId(2));
        let mut quota = FairQuota::default();
        assert!(quota.admits(one, 500, 100), "an empty quota admits any amount");
        quota.adjust(one, 120, 0);
        assert!(!quota.admits(one, 1, 100));
        assert!(quota.admits(two, 70, 100), "a tenant without usage is admitted");
        quota.adjust(two, 30, 0);
        assert!(quota.admits(two, 20, 100) && !quota.admits(two, 30, 100));
        quota.adjust(two, 0, 30);
        assert_eq!(quota, FairQuota { usage: vec![(one, 120)] });
    }

    #[test]
    fn admission_holds_at_its_exact_bounds() {
        let quota = |held: &[(u64, usize)]| {
            let mut quota = FairQuota::default();
            for &(tenant, bytes) in held {
                quota.adjust(TenantId(tenant), bytes, 0);
            }
            quota
        };
        for (held, tenant, more, expected) in [
            // An empty quota.
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
            let admitted = quota(held).admits(TenantId(tenant), more, 100);
            assert_eq!(admitted, expected, "{more} more for {tenant} beside {held:?}");
        }
    }

    #[test]
    fn usage_is_added_up_and_never_negative() {
        let mut quota = FairQuota::default();
        quota.adjust(TenantId(1), 10, 0);
        quota.adjust(TenantId(2), 5, 0);
        quota.adjust(TenantId(1), 7, 3);
        assert_eq!((quota.total(), &quota.usage), (19, &vec![(TenantId(1), 14), (TenantId(2), 5)]));
        quota.adjust(TenantId(1), 0, 20);
        assert_eq!((quota.total(), &quota.usage), (5, &vec![(TenantId(2), 5)]));
        quota.adjust(TenantId(3), 0, 0);
        assert_eq!(quota.usage.len(), 1, "a tenant without usage is not listed");
    }
}
