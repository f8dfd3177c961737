//! The registry on NATS.

use std::sync::Arc;

use sconce_registry::{NatsOptions, NatsRegistry};

use crate::conformance::conformance;
use crate::pool::{Backend, Pool};
use crate::server::Server;

/// Three connections to one server.
pub(crate) async fn pool() -> Pool {
    let server = Server::start("");
    let mut handles: Vec<Arc<dyn Backend>> = Vec::new();
    for _ in 0..3 {
        handles.push(Arc::new(NatsRegistry::connect(NatsOptions::new([server.url()])).await.unwrap()));
    }
    Pool { handles, _server: Some(server) }
}

conformance!(pool);
