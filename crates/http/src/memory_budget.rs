//! The memory budget of requests in flight: bodies, output rows and responses share it, and tenants share it fairly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fair_quota::FairQuota;
use crate::keys::TenantId;
use crate::refusal::{Kind, Refusal};

/// The bytes that all requests in flight hold, within a limit.
#[derive(Default)]
pub struct MemoryBudget {
    quota: Mutex<FairQuota>,
    limit: AtomicUsize,
}

/// The memory of one request. Clones count for the same request.
#[derive(Clone, Default)]
pub struct RequestMemory {
    budget: Arc<MemoryBudget>,
    tenant: TenantId,
    /// Bytes that this request holds.
    held: Arc<AtomicUsize>,
}

/// Bytes of one request, released on drop.
#[derive(Default)]
pub struct Reservation {
    memory: RequestMemory,
    bytes: usize,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> MemoryBudget {
        MemoryBudget { quota: Mutex::default(), limit: AtomicUsize::new(limit) }
    }

    /// Changes the limit. Bytes that are held stay held.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    fn quota(&self) -> MutexGuard<'_, FairQuota> {
        self.quota.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestMemory {
    /// The memory of a request of `tenant`.
    pub fn new(budget: &Arc<MemoryBudget>, tenant: TenantId) -> RequestMemory {
        RequestMemory { budget: Arc::clone(budget), tenant, held: Arc::default() }
    }

    /// A reservation of no bytes.
    pub fn reserve_none(&self) -> Reservation {
        Reservation { memory: self.clone(), bytes: 0 }
    }

    /// Reserves `bytes`.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation, Refusal> {
        let mut reservation = self.reserve_none();
        reservation.grow(bytes)?;
        Ok(reservation)
    }
}

impl Reservation {
    /// Reserves `bytes` more. The only request in flight always succeeds, so that no request is refused permanently.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let RequestMemory { budget, tenant, held } = &self.memory;
        let limit = budget.limit.load(Ordering::Relaxed);
        let mut quota = budget.quota();
        let alone = quota.total() == held.load(Ordering::Relaxed);
        if !alone && !quota.admits(*tenant, bytes, limit) {
            return Err(Refusal::new(
                Kind::Overloaded,
                format!("the memory budget of requests in flight is exhausted: {limit} bytes"),
            ));
        }
        quota.adjust(*tenant, bytes, 0);
        held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut quota = self.memory.budget.quota();
            quota.adjust(self.memory.tenant, 0, self.bytes);
            self.memory.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_share_the_budget_and_a_lone_request_may_exceed_it() {
        let budget = Arc::new(MemoryBudget::new(100));
        let request = |tenant| RequestMemory::new(&budget, TenantId(tenant));
        let (one, two, other) = (request(1), request(1), request(2));
        let first = one.reserve(90).expect("an empty budget");
        let second = one.reserve(90).expect("the request is alone");
        assert_eq!(two.reserve(1).err().map(|refusal| refusal.kind), Some(Kind::Overloaded));
        let third = other.reserve(40).expect("another tenant has its share");
        assert!(one.reserve(1).is_err(), "the request is no longer alone");
        drop((second, third));
        assert!(two.reserve(11).is_err() && two.reserve(10).is_ok());
        drop(first);
        assert_eq!(budget.quota().total(), 0);
        budget.set_limit(5);
        let _one = one.reserve(1).expect("capacity");
        assert!(two.reserve(5).is_err() && two.reserve(4).is_ok());
    }
}
