//! Settings of a gateway.

use std::fmt;
use std::path::PathBuf;

/// Settings of a gateway.
#[derive(Clone, Default)]
pub struct GatewaySettings {
    /// Settings of its HTTP edge.
    pub http: sconce_http::Settings,
    /// API key that the gateway sends to workers. They trust the tenant that a request with the pool's key names.
    pub pool_key: Option<String>,
    /// API key for the operator routes of workers, by which the gateway loads and unloads models; `pool_key` by default.
    pub operator_key: Option<String>,
    /// PEM file of the certificate authorities of workers; those of the system by default.
    pub worker_authority: Option<PathBuf>,
}

impl fmt::Debug for GatewaySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewaySettings")
            .field("http", &self.http)
            .field("pool_key", &self.pool_key.as_ref().map(|_| "…"))
            .field("operator_key", &self.operator_key.as_ref().map(|_| "…"))
            .field("worker_authority", &self.worker_authority)
            .finish()
    }
}
