//! The server of a gateway.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use sconce_http::{Edge, listen};
use sconce_registry::RegistryError;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::util::MapRequest;

use super::hedging::Hedging;
use super::members::Members;
use super::metrics::Metrics;
use super::pin::Pins;
use super::rate_limits::RateLimits;
use super::router::{RULES, router, strip};
use super::settings::GatewaySettings;
use super::state::Gateway;
use crate::backend::Backend;
use crate::placement::{Counters, Placement, WorkerApi};
use crate::worker_client;

/// Why a gateway failed.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A socket, a file or a thread could not be used.
    #[error("the gateway can't run: {0}")]
    Io(#[from] io::Error),
    /// The address can't be used.
    #[error("could not listen on: `{address}`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A setting is not valid.
    #[error("{0}")]
    Settings(String),
    /// A metric could not be registered.
    #[error("metrics can't be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The options of the registry are not valid.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// Serves the workers that `backend` knows on `listener` until `stop` completes, then shuts down gracefully.
pub async fn serve(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    settings: GatewaySettings,
    stop: impl Future<Output = ()>,
) -> Result<(), GatewayError> {
    let address = listener.local_addr()?;
    let edge = Arc::new(Edge::new(settings.http.clone(), RULES, address));
    let metrics = Metrics::new()?;
    let client = worker_client::new(settings.worker_authority.as_deref())?;
    let members = Arc::new(Members::new(backend.watch()));
    let operator_key = settings.operator_key.as_deref().or(settings.pool_key.as_deref());
    let placement = Placement::new(
        Arc::clone(&backend),
        members.watcher.clone(),
        WorkerApi::new(client.clone(), operator_key),
        Arc::clone(&edge),
        Counters { loads: metrics.model_loads.clone(), unloads: metrics.model_unloads.clone() },
    );
    let gateway = Arc::new(Gateway {
        rate_limits: Arc::new(RateLimits::new(&edge)),
        edge,
        backend: Arc::clone(&backend),
        metrics,
        client,
        members,
        placement: Arc::new(placement),
        liveness: Arc::default(),
        hedging: Hedging::default(),
        pins: Pins::new(Arc::clone(&backend)),
        settings,
    });
    let mut tasks = JoinSet::new();
    let members = Arc::clone(&gateway.members);
    tasks.spawn(async move { members.follow().await });
    let liveness = Arc::clone(&gateway.liveness);
    tasks.spawn(liveness.watch(gateway.members.watcher.clone(), gateway.client.clone()));
    tasks.spawn(Arc::clone(&gateway.rate_limits).tell(Arc::clone(&backend)));
    tasks.spawn(Arc::clone(&gateway.rate_limits).listen(backend));
    tasks.spawn(Arc::clone(&gateway.placement).run(address.to_string(), gateway.members.changes()));
    let named = Arc::clone(&gateway);
    let strip = move |request: Request<Incoming>| strip(&named, request);
    let service = MapRequest::new(router(&gateway), strip);
    listen(Arc::clone(&gateway.edge), listener, service, stop, || ()).await;
    tasks.shutdown().await;
    gateway.placement.stop().await;
    Ok(())
}
