//! Runs a gateway and an agent in one process until a signal stops them.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use sconce_registry::{NatsRegistry, RegistryError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::agent::{AgentError, AgentSettings, supervise};
use crate::gateway::{GatewayError, RunSettings, serve};
use crate::signals::Signals;

/// What a pool on one machine needs.
#[derive(Clone, Debug)]
pub struct UpSettings {
    /// Its gateway.
    pub gateway: RunSettings,
    /// Its agent.
    pub agent: AgentSettings,
}

/// Why a pool on one machine failed.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// A thread or a signal handler could not be created.
    #[error("the pool can't run: {0}")]
    Io(#[from] io::Error),
    /// The gateway failed.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// The agent failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The options of the registry are not valid.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Runs a gateway and an agent. On the first SIGTERM or SIGINT they finish their requests, on the second they are killed.
/// Calls `on_listening` with the address of the gateway.
pub fn run(settings: UpSettings, on_listening: impl FnOnce(SocketAddr)) -> Result<(), UpError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sconce-pool").build()?;
    let outcome = runtime.block_on(async {
        let signals = Signals::new()?;
        let UpSettings { gateway: RunSettings { address, nats, gateway }, agent } = settings;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| GatewayError::Listen { address, source })?;
        let registry = Arc::new(NatsRegistry::connect(nats).await?);
        on_listening(listener.local_addr()?);
        let stop = CancellationToken::new();
        let gateway = serve(listener, registry, gateway, stop.clone().cancelled_owned());
        both(gateway, stop, agent, signals).await
    });
    runtime.shutdown_background();
    outcome
}

/// Runs both until a signal, or until one of them ends.
async fn both(
    gateway: impl Future<Output = Result<(), GatewayError>>,
    stop_gateway: CancellationToken,
    agent: AgentSettings,
    mut signals: Signals,
) -> Result<(), UpError> {
    let (stop_agent, abort) = (CancellationToken::new(), CancellationToken::new());
    let mut gateway = pin!(gateway);
    let mut agent = pin!(supervise(agent, stop_agent.clone(), abort.clone()));
    tokio::select! {
        outcome = &mut gateway => return Ok(outcome?),
        // All workers were drained.
        outcome = &mut agent => {
            stop_gateway.cancel();
            gateway.await?;
            return Ok(outcome?);
        }
        () = signals.next() => {}
    }
    // The gateway first: its requests in flight need the workers.
    stop_gateway.cancel();
    tokio::select! {
        outcome = &mut gateway => outcome?,
        () = signals.next() => abort.cancel(),
    }
    stop_agent.cancel();
    tokio::select! {
        outcome = &mut agent => return Ok(outcome?),
        () = signals.next() => abort.cancel(),
    }
    Ok(agent.await?)
}
