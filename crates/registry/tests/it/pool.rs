//! Handles of one registry, and workers made for tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_registry::{
    Bindings, BootId, Broadcast, DesiredState, Heartbeat, Lease, Load, MemberMap, Rates, Registration,
    Registry, RegistryError, Watcher, WorkerState,
};

use crate::server::Server;

/// A registry that also grants leases, binds names, stores the desired state and sends messages.
pub(crate) trait Backend: Registry + Lease + Bindings + DesiredState + Broadcast {}

impl<T: Registry + Lease + Bindings + DesiredState + Broadcast> Backend for T {}

/// A backend for one test.
pub(crate) struct Pool {
    /// Handles of the same registry, as of several processes.
    pub(crate) handles: Vec<Arc<dyn Backend>>,
    /// The server behind them.
    pub(crate) _server: Option<Server>,
}

impl Pool {
    pub(crate) fn handle(&self, index: usize) -> Arc<dyn Backend> {
        Arc::clone(&self.handles[index % self.handles.len()])
    }
}

/// A worker that counts its heartbeats.
pub(crate) struct Worker {
    registry: Arc<dyn Backend>,
    pub(crate) registration: Registration,
    pub(crate) sequence: u64,
}

impl Worker {
    pub(crate) fn new(registry: Arc<dyn Backend>, id: &str, ttl: Duration) -> Worker {
        Worker::of_boot(registry, id, ttl, BootId::random())
    }

    pub(crate) fn of_boot(registry: Arc<dyn Backend>, id: &str, ttl: Duration, boot_id: BootId) -> Worker {
        let registration = Registration {
            worker_id: id.to_owned(),
            boot_id,
            url: format!("http://{id}:8080"),
            version: "0.1.0".to_owned(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap(),
            models: Vec::new(),
            failure: None,
        };
        Worker { registry, registration, sequence: 0 }
    }

    pub(crate) fn id(&self) -> &str {
        &self.registration.worker_id
    }

    pub(crate) fn boot(&self) -> BootId {
        self.registration.boot_id
    }

    pub(crate) fn next_heartbeat(&mut self) -> Heartbeat {
        self.sequence += 1;
        Heartbeat {
            boot_id: self.boot(),
            sequence: self.sequence,
            state: WorkerState::Ready,
            load: Load { requests: 3, tokens: 1200, latency: 0.004 },
            rates: Rates { small: 900.0, medium: 14_000.0, large: 21_000.0 },
            free_memory: BTreeMap::from([("cpu".to_owned(), 4096)]),
        }
    }

    pub(crate) async fn register(&mut self) -> Result<(), RegistryError> {
        let heartbeat = self.next_heartbeat();
        self.registry.register(self.registration.clone(), heartbeat).await
    }

    pub(crate) async fn beat(&mut self) -> Result<(), RegistryError> {
        let heartbeat = self.next_heartbeat();
        self.registry.heartbeat(&self.registration.worker_id, heartbeat).await
    }

    pub(crate) async fn deregister(&self) -> Result<(), RegistryError> {
        self.registry.deregister(self.id(), self.boot()).await
    }

    /// Sends heartbeats forever, whatever their outcome.
    pub(crate) fn keep_alive(mut self, interval: Duration) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                let _ = self.beat().await;
                tokio::time::sleep(interval).await;
            }
        })
    }
}

/// Waits until `condition` holds for the map, at most `limit`. Returns how long it took.
pub(crate) async fn wait_for(
    watcher: &mut Watcher,
    what: &str,
    limit: Duration,
    condition: impl FnMut(&MemberMap) -> bool,
) -> Duration {
    let start = Instant::now();
    let outcome = tokio::time::timeout(limit, watcher.wait_for(condition)).await;
    assert_eq!(outcome, Ok(true), "after {limit:?}: {what}; the map is {:#?}", watcher.snapshot());
    start.elapsed()
}
