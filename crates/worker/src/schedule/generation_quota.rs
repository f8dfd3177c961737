//! Admission of generations: how many outputs of a model are generated or wait, shared fairly between tenants.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_http::fair_quota::FairQuota;
use sconce_http::keys::TenantId;

/// The outputs of one model that are generated or wait.
#[derive(Default)]
pub(crate) struct GenerationQuota {
    usage: Mutex<FairQuota>,
}

/// The outputs of one request, released on drop.
pub(crate) struct GenerationPermit {
    quota: Arc<GenerationQuota>,
    tenant: TenantId,
    outputs: usize,
}

impl GenerationQuota {
    fn usage(&self) -> MutexGuard<'_, FairQuota> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits `outputs` of a tenant within `limit`.
    pub(crate) fn admit(
        self: &Arc<GenerationQuota>,
        tenant: TenantId,
        outputs: usize,
        limit: usize,
    ) -> Option<GenerationPermit> {
        let mut usage = self.usage();
        if !usage.admits(tenant, outputs, limit) {
            return None;
        }
        usage.adjust(tenant, outputs, 0);
        Some(GenerationPermit { quota: Arc::clone(self), tenant, outputs })
    }
}

impl Drop for GenerationPermit {
    fn drop(&mut self) {
        self.quota.usage().adjust(self.tenant, 0, self.outputs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_admitted_within_the_limit_and_released_on_drop() {
        let quota = Arc::new(GenerationQuota::default());
        let admit = |tenant, outputs| quota.admit(TenantId(tenant), outputs, 4);
        let first = admit(1, 3).expect("capacity");
        assert!(admit(1, 2).is_none());
        let second = admit(1, 1).expect("capacity");
        let other = admit(2, 2).expect("a share of its own");
        assert!(admit(1, 1).is_none() && admit(2, 1).is_none());
        drop((first, second, other));
        assert_eq!(quota.usage().total(), 0);
    }
}
