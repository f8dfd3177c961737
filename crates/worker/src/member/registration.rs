//! The registration of the worker in a registry: its registration record on change, a heartbeat at an interval, and its
//! removal at shutdown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sconce_registry::{BootId, NatsRegistry, Registration, Registry, RegistryError, WorkerState};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::records;
use crate::models::readiness::{check_readiness, worker_state};
use crate::settings::PoolRegistry;
use crate::state::app::App;

/// Interval of heartbeats: two may be lost within their time to live.
const INTERVAL: Duration = Duration::from_millis(650);
/// Time to live of a heartbeat, after which a worker that died leaves the rotation. NATS counts whole seconds.
const TTL: Duration = Duration::from_secs(2);
/// Interval at which a change of the state or of the loaded models is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of the removal at shutdown.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects to a registry. Fails only if an option is not valid: a registry that is away is tried again.
pub(crate) async fn connect(registry: PoolRegistry) -> Result<Arc<dyn Registry>, RegistryError> {
    Ok(match registry {
        PoolRegistry::Nats(options) => Arc::new(NatsRegistry::connect(*options).await?),
        PoolRegistry::Shared(registry) => registry,
    })
}

/// A worker in a registry.
pub(crate) struct Member {
    pub(crate) app: Arc<App>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) worker_id: String,
    pub(crate) url: String,
}

impl Member {
    /// Registers the worker and sends heartbeats until `ended` is cancelled, then removes it. While the server shuts down,
    /// heartbeats have the state `draining`.
    pub(crate) async fn run(self, ended: CancellationToken) {
        let Member { app, registry, worker_id, url } = self;
        let (boot_id, mut sequence) = (BootId::random(), 0);
        let (mut written, mut last_state, mut last_loaded, mut due) = (None, None, None, Instant::now());
        let mut outcome_before = None;
        while !ended.is_cancelled() {
            let (state, loaded, now) = (worker_state(&app), loaded(&app), Instant::now());
            if now >= due || last_state != Some(state) || last_loaded.as_ref() != Some(&loaded) {
                // Loads that failed are retried, as for a probe.
                let _ = check_readiness(&app, None, true);
                sequence += 1;
                let (models, heartbeat) =
                    (records::models(&app), records::heartbeat(&app, state, boot_id, sequence));
                let write = async {
                    if written.as_ref() == Some(&models) {
                        return registry.heartbeat(&worker_id, heartbeat).await;
                    }
                    let registration = Registration {
                        worker_id: worker_id.clone(),
                        boot_id,
                        url: url.clone(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        ttl_ms: TTL.as_millis() as u64,
                        models: models.clone(),
                        failure: None,
                    };
                    registry.register(registration, heartbeat).await?;
                    written = Some(models);
                    Ok(())
                };
                let outcome = tokio::select! {
                    outcome = write => outcome.map_err(|error| error.to_string()),
                    () = ended.cancelled() => break,
                };
                log_change(&app, &worker_id, &outcome, &mut outcome_before);
                (last_state, last_loaded, due) = (Some(state), Some(loaded), now + INTERVAL);
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = app.drained(), if last_state != Some(WorkerState::Draining) => {}
                () = ended.cancelled() => {}
            }
        }
        let removal =
            tokio::time::timeout(DEREGISTER_TIMEOUT, registry.deregister(&worker_id, boot_id)).await;
        if !matches!(removal, Ok(Ok(()))) {
            let log = || warn!(worker_id, "the worker is still registered: its heartbeat expires");
            app.edge.telemetry.log(log);
        }
    }
}

/// The models of the worker, and whether each is loaded. Gateways learn of a change at once.
fn loaded(app: &App) -> Vec<(String, bool)> {
    app.slots().iter().map(|slot| (slot.name.clone(), slot.loaded().is_some())).collect()
}

/// Logs the outcome of a write if it differs from the one before.
fn log_change(
    app: &App,
    worker_id: &str,
    outcome: &Result<(), String>,
    before: &mut Option<Result<(), String>>,
) {
    if before.as_ref() == Some(outcome) {
        return;
    }
    app.edge.telemetry.log(|| match outcome {
        Ok(()) => info!(worker_id, "registered"),
        Err(why) => warn!(worker_id, why, "not registered"),
    });
    *before = Some(outcome.clone());
}
