//! Runs the workers of one machine until a signal stops the agent, or all workers have stopped.

use std::io;
use std::sync::Arc;

use sconce_registry::{NatsOptions, NatsRegistry, Registry, RegistryError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::log::AgentLog;
use super::process::WorkerCommand;
use super::supervision::SupervisionOptions;
use super::supervisor::{Shared, Supervisor};
use crate::signals::Signals;

/// What an agent needs.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Its workers.
    pub workers: Vec<WorkerCommand>,
    /// When a worker is restarted or killed.
    pub options: SupervisionOptions,
    /// Its log.
    pub log: AgentLog,
    /// The registry of the pool, in which workers that do not run are registered as degraded.
    pub nats: Option<NatsOptions>,
}

/// Why an agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A thread or a signal handler could not be created.
    #[error("the agent can't run: {0}")]
    Io(#[from] io::Error),
    /// The options of the registry are not valid.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Runs an agent. On the first SIGTERM or SIGINT its workers drain, on the second they are killed.
pub fn run(settings: AgentSettings) -> Result<(), AgentError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sconce-agent").build()?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
        let workers = supervise(settings, stop.clone(), abort.clone());
        let mut workers = std::pin::pin!(workers);
        for token in [stop, abort] {
            tokio::select! {
                outcome = &mut workers => return outcome,
                () = signals.next() => token.cancel(),
            }
        }
        workers.await
    });
    runtime.shutdown_background();
    outcome
}

/// Runs workers until all have stopped. They drain once `stop` is cancelled, and are killed once `abort` is.
pub(crate) async fn supervise(
    settings: AgentSettings,
    stop: CancellationToken,
    abort: CancellationToken,
) -> Result<(), AgentError> {
    let AgentSettings { workers, options, log, nats } = settings;
    let registry = match nats {
        None => None,
        Some(nats) => Some(Arc::new(NatsRegistry::connect(nats).await?) as Arc<dyn Registry>),
    };
    let shared = Shared { options, log: log.clone(), registry, stop: stop.clone(), abort };
    let mut tasks = JoinSet::new();
    for command in workers {
        tasks.spawn(Supervisor::new(command, shared.clone()).run());
    }
    while tasks.join_next().await.is_some() {}
    if !stop.is_cancelled() {
        log.info("all workers were drained", &[]);
    }
    Ok(())
}
