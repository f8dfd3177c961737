//! The registration of a worker that does not run: its agent registers it as degraded, with the reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sconce_registry::{
    BootId, FailureRecord, Heartbeat, Load, Rates, Registration, Registry, RegistryError, WorkerState,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Interval of heartbeats.
const INTERVAL: Duration = Duration::from_millis(650);
/// Time to live of a heartbeat.
const TTL: Duration = Duration::from_secs(2);
/// Timeout of the removal.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(1);

/// A worker that is registered as degraded.
#[derive(Debug)]
pub(super) struct FailedWorker {
    ended: CancellationToken,
    task: JoinHandle<()>,
}

impl FailedWorker {
    /// Registers the worker until it is withdrawn.
    pub(super) fn register(
        registry: Arc<dyn Registry>,
        worker_id: String,
        failure: FailureRecord,
    ) -> FailedWorker {
        let ended = CancellationToken::new();
        let task = tokio::spawn(keep(registry, worker_id, failure, ended.clone()));
        FailedWorker { ended, task }
    }

    /// Removes the registration.
    pub(super) async fn withdraw(self) {
        self.ended.cancel();
        let _ = self.task.await;
    }
}

/// Registers a worker, and sends heartbeats until `ended` is cancelled. Failed writes are retried with the next one.
async fn keep(
    registry: Arc<dyn Registry>,
    worker_id: String,
    failure: FailureRecord,
    ended: CancellationToken,
) {
    let boot_id = BootId::random();
    let registration = Registration {
        worker_id: worker_id.clone(),
        boot_id,
        url: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ttl_ms: u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX),
        models: Vec::new(),
        failure: Some(failure),
    };
    let (mut is_registered, mut sequence) = (false, 0);
    let write = async {
        loop {
            sequence += 1;
            let heartbeat = heartbeat(boot_id, sequence);
            let outcome = if is_registered {
                registry.heartbeat(&worker_id, heartbeat).await
            } else {
                registry.register(registration.clone(), heartbeat).await
            };
            is_registered = match outcome {
                Ok(()) => true,
                // A process with this id runs elsewhere.
                Err(RegistryError::Superseded { .. }) => return,
                Err(_) => false,
            };
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        () = write => {}
        () = ended.cancelled() => {}
    }
    // Without it, the heartbeat expires.
    let _ = timeout(DEREGISTER_TIMEOUT, registry.deregister(&worker_id, boot_id)).await;
}

fn heartbeat(boot_id: BootId, sequence: u64) -> Heartbeat {
    Heartbeat {
        boot_id,
        sequence,
        state: WorkerState::Degraded,
        load: Load::default(),
        rates: Rates::default(),
        free_memory: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use sconce_registry::InProcess;

    use super::*;

    #[tokio::test]
    async fn a_worker_that_does_not_run_is_a_degraded_member_until_it_is_withdrawn() {
        let registry = Arc::new(InProcess::default());
        let mut watcher = registry.watch();
        let failure = FailureRecord { reason: "it crashed".to_owned(), log: vec!["a line".to_owned()] };
        let failed = FailedWorker::register(registry, "seven".to_owned(), failure.clone());
        let state = |map: &sconce_registry::MemberMap| {
            let member = map.get("seven")?;
            assert_eq!(member.registration.failure.as_ref(), Some(&failure));
            assert!(!member.registration.is_running() && member.registration.models.is_empty());
            Some(member.heartbeat.state)
        };
        while watcher.read(state).is_none() {
            assert!(watcher.changed().await);
        }
        assert_eq!(watcher.read(state), Some(WorkerState::Degraded));
        failed.withdraw().await;
        while watcher.read(state).is_some() {
            assert!(watcher.changed().await);
        }
    }
}
