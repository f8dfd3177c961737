//! The interface of a registry.

use async_trait::async_trait;

use crate::boot::BootId;
use crate::record::{Heartbeat, RecordError, Registration};
use crate::watcher::Watcher;

/// The members of a pool. Workers register and send heartbeats; gateways watch.
#[async_trait]
pub trait Registry: Send + Sync {
    /// Registers a worker, or replaces its registration. It is a member from now on, as long as heartbeats follow.
    ///
    /// Fails with [`RegistryError::Superseded`] if a newer boot of the same worker id is alive.
    async fn register(&self, registration: Registration, heartbeat: Heartbeat) -> Result<(), RegistryError>;

    /// Writes a heartbeat of a worker that was registered here. Writes its registration again where the backend has
    /// lost it. A heartbeat that fails is not retried: the next one replaces it.
    ///
    /// Fails with [`RegistryError::Superseded`] if a newer boot of the same worker id is alive.
    async fn heartbeat(&self, worker_id: &str, heartbeat: Heartbeat) -> Result<(), RegistryError>;

    /// Removes a worker. Does nothing if another boot of the same worker id is registered.
    async fn deregister(&self, worker_id: &str, boot_id: BootId) -> Result<(), RegistryError>;

    /// Starts to watch the members. The map of the watcher is empty at first.
    fn watch(&self) -> Watcher;
}

/// Why a registry or a lease refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The backend does not answer.
    #[error("{backend} is not available: {reason}")]
    Unavailable {
        /// Name and address of the backend.
        backend: String,
        /// Why.
        reason: String,
    },
    /// A newer boot of the same worker id is alive.
    #[error(
        "worker `{worker_id}` is registered by a newer process (boot {newer}); \
         hint: give each worker its own --worker-id"
    )]
    Superseded {
        /// The worker id.
        worker_id: String,
        /// The boot that is registered.
        newer: BootId,
    },
    /// A heartbeat of a boot that did not register.
    #[error("worker `{worker_id}` sent a heartbeat before it registered")]
    NotRegistered {
        /// The worker id.
        worker_id: String,
    },
    /// The lease has expired or has another holder.
    #[error("the lease `{name}` was lost: it expired or has another holder")]
    LeaseLost {
        /// Name of the lease.
        name: String,
    },
    /// A record is not valid.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// An option of the backend is not valid.
    #[error("{option} `{value}` is not valid: {reason}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// Why.
        reason: String,
    },
}
