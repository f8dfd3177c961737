//! Runs a gateway on NATS until a signal stops it.

use std::net::SocketAddr;
use std::sync::Arc;

use sconce_registry::{NatsOptions, NatsRegistry};
use tokio::net::TcpListener;

use super::server::{GatewayError, serve};
use super::settings::GatewaySettings;
use crate::signals::Signals;

/// What a gateway process needs.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Address to listen on.
    pub address: SocketAddr,
    /// The registry.
    pub nats: NatsOptions,
    /// Settings of the gateway.
    pub gateway: GatewaySettings,
}

/// Runs a gateway until SIGTERM or SIGINT. Calls `on_listening` with the address that it listens on.
pub fn run(settings: RunSettings, on_listening: impl FnOnce(SocketAddr)) -> Result<(), GatewayError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("sconce-gateway").build()?;
    let served = runtime.block_on(async {
        // Before the socket is bound: a signal without a handler would kill the process.
        let mut signals = Signals::new()?;
        let RunSettings { address, nats, gateway } = settings;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| GatewayError::Listen { address, source })?;
        let registry = Arc::new(NatsRegistry::connect(nats).await?);
        on_listening(listener.local_addr()?);
        serve(listener, registry, gateway, signals.next()).await
    });
    runtime.shutdown_background();
    served
}
