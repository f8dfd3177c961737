//! Which gateway of a pool places models.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sconce_registry::{LeaseGrant, RegistryError};
use tokio::time::sleep;
use tracing::debug;

use crate::backend::Backend;

/// Name of the lease.
const NAME: &str = "placement";
/// Time to live of the lease.
const TTL: Duration = Duration::from_secs(5);
/// Interval at which it is renewed, or others try to acquire it.
const INTERVAL: Duration = Duration::from_millis(1500);

/// The lease of placement as one gateway sees it.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// The lease is certainly held until then.
    until: Mutex<Option<Instant>>,
}

impl Leadership {
    /// Whether this gateway certainly holds the lease.
    pub(super) fn is_held(&self) -> bool {
        self.until.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }

    /// Acquires and renews the lease, forever. Calls `changed` each time that it is acquired or lost.
    pub(super) async fn hold(&self, backend: &dyn Backend, holder: &str, changed: impl Fn(bool)) {
        let mut grant = None;
        loop {
            let had_it = grant.is_some();
            grant = match grant {
                Some(held) => renew(backend, held).await,
                None => backend.acquire(NAME, holder, TTL).await.ok().flatten(),
            };
            *self.until.lock().unwrap_or_else(PoisonError::into_inner) =
                grant.as_ref().map(LeaseGrant::expires);
            if had_it != grant.is_some() {
                changed(grant.is_some());
            }
            sleep(INTERVAL).await;
        }
    }
}

/// Renews a lease. While the registry is away, it is kept until it expires, and tried again.
async fn renew(backend: &dyn Backend, mut held: LeaseGrant) -> Option<LeaseGrant> {
    match backend.renew(&mut held).await {
        Ok(()) => Some(held),
        Err(RegistryError::LeaseLost { .. }) => None,
        Err(error) => {
            debug!(%error, "the lease of placement could not be renewed");
            Some(held)
        }
    }
}
