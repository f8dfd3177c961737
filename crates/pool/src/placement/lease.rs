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
    /// The lease, while it is held.
    grant: tokio::sync::Mutex<Option<LeaseGrant>>,
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
        loop {
            let mut grant = self.grant.lock().await;
            let was_held = grant.is_some();
            *grant = match grant.take() {
                Some(held) => renew(backend, held).await,
                None => backend.acquire(NAME, holder, TTL).await.ok().flatten(),
            };
            self.set_until(grant.as_ref().map(LeaseGrant::expires));
            let is_held = grant.is_some();
            drop(grant);
            if was_held != is_held {
                changed(is_held);
            }
            sleep(INTERVAL).await;
        }
    }

    /// Releases the lease, so that another gateway need not wait until it expires.
    pub(super) async fn release(&self, backend: &dyn Backend) {
        self.set_until(None);
        let Some(grant) = self.grant.lock().await.take() else { return };
        if let Err(error) = backend.release(grant).await {
            debug!(%error, "the lease of placement could not be released");
        }
    }

    fn set_until(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
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

#[cfg(test)]
mod tests {
    use sconce_registry::{InProcess, Lease};
    use tokio::select;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_released_lease_is_free_at_once() {
        let (registry, leadership, acquired) = (InProcess::new(), Leadership::default(), Notify::new());
        let acquire = || registry.acquire(NAME, "another", TTL);
        select! {
            () = leadership.hold(&registry, "one", |_| acquired.notify_one()) => {}
            () = acquired.notified() => {}
        }
        assert!(leadership.is_held());
        assert!(acquire().await.unwrap().is_none());
        leadership.release(&registry).await;
        assert!(!leadership.is_held());
        assert!(acquire().await.unwrap().is_some());
    }
}
