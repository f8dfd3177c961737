//! Leases: exclusive rights with a time to live.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::registry::RegistryError;

/// Grants exclusive rights by name. A lease that is not renewed within its time to live is free again.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Acquires the lease `name` for `ttl`, or returns `None` if it is held. `holder` is for people to read: two
    /// acquirers with the same one exclude each other. Backends may round `ttl` up to whole seconds.
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
        ttl: Duration,
    ) -> Result<Option<LeaseGrant>, RegistryError>;

    /// Extends a lease by its time to live from now. Fails with [`RegistryError::LeaseLost`] if it expired, even if
    /// nobody else acquired it.
    async fn renew(&self, grant: &mut LeaseGrant) -> Result<(), RegistryError>;

    /// Frees a lease. Does nothing if it was lost.
    async fn release(&self, grant: LeaseGrant) -> Result<(), RegistryError>;
}

/// A lease that was acquired.
#[derive(Debug)]
pub struct LeaseGrant {
    pub(crate) name: String,
    pub(crate) holder: String,
    pub(crate) fence: u64,
    pub(crate) ttl: Duration,
    pub(crate) expires: Instant,
}

impl LeaseGrant {
    /// Name of the lease.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who holds it, for people to read.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Fencing token: greater than that of every earlier holder of the same lease.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    /// When its time to live ends, unless it is renewed.
    pub fn expires(&self) -> Instant {
        self.expires
    }

    /// Whether the lease is certainly still held: its time to live, counted from before the last request for it, has
    /// not passed.
    pub fn is_held(&self) -> bool {
        Instant::now() < self.expires
    }
}
