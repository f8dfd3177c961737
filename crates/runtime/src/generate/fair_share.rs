//! Fair sharing of the running batch between tenants, by computed tokens of prompts and outputs.

use std::collections::HashMap;

/// The tokens that were computed for each active tenant. The tenant with the fewest is next.
///
/// A tenant that becomes active starts with the fewest tokens of the active ones: time without requests gives no credit.
#[derive(Debug, Default)]
pub(crate) struct FairShare {
    tenants: HashMap<u64, Tenant>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Number of sequences.
    sequences: usize,
    tokens: u64,
}

impl FairShare {
    /// Adds a sequence of a tenant.
    pub(crate) fn enter(&mut self, tenant: u64) {
        let fewest = self.tenants.values().map(|tenant| tenant.tokens).min().unwrap_or(0);
        self.tenants.entry(tenant).or_insert(Tenant { sequences: 0, tokens: fewest }).sequences += 1;
    }

    /// Removes a sequence of a tenant.
    pub(crate) fn leave(&mut self, tenant: u64) {
        if let Some(active) = self.tenants.get_mut(&tenant) {
            active.sequences = active.sequences.saturating_sub(1);
            if active.sequences == 0 {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// Counts computed tokens of a tenant.
    pub(crate) fn count(&mut self, tenant: u64, tokens: usize) {
        if let Some(active) = self.tenants.get_mut(&tenant) {
            active.tokens += tokens as u64;
        }
    }

    /// The tokens of a tenant.
    pub(crate) fn tokens(&self, tenant: u64) -> u64 {
        self.tenants.get(&tenant).map_or(0, |active| active.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_becomes_active_has_neither_credit_nor_debt() {
        let mut share = FairShare::default();
        share.enter(1);
        share.count(1, 100);
        share.enter(2);
        share.enter(2);
        assert_eq!([share.tokens(1), share.tokens(2)], [100, 100]);
        share.count(2, 50);
        share.enter(3);
        assert_eq!(share.tokens(3), 100);
        share.leave(2);
        assert_eq!(share.tokens(2), 150, "it has another sequence");
        share.leave(2);
        share.enter(2);
        assert_eq!(share.tokens(2), 100);
        (1..=3).for_each(|tenant| share.leave(tenant));
        share.enter(4);
        assert_eq!(share.tokens(4), 0, "nobody is active");
    }
}
