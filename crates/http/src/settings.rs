//! Settings of the HTTP edge.

use std::time::Duration;

use crate::keys::Keys;
use crate::telemetry::TelemetryConfig;
use crate::tls::Tls;

/// Settings of the HTTP edge.
#[derive(Clone, Debug)]
pub struct Settings {
    /// API keys. Without any, every request is authorized.
    pub keys: Keys,
    /// Maximum bytes of one request body.
    pub max_body: usize,
    /// Maximum bytes of all bodies, computed rows and responses in flight.
    pub max_bodies: usize,
    /// Maximum bytes of one response.
    pub max_answer: usize,
    /// Maximum bytes of a request's headers.
    pub max_headers: usize,
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Timeout of a whole request.
    pub time_limit: Duration,
    /// Timeout for reading the headers, and again for reading the body.
    pub read_limit: Duration,
    /// Timeout for a client to accept the next bytes of a response, after which its connection is closed.
    pub write_limit: Duration,
    /// Time that requests in flight have to finish after shutdown began.
    pub grace: Duration,
    /// Time that connections are still accepted after shutdown began, so that requests already sent are answered.
    pub linger: Duration,
    /// Certificate and key. Without one, connections are plain text.
    pub tls: Option<Tls>,
    /// Host names that requests may name where there are no API keys, beside loopback names and the address that the
    /// server listens on. `*` allows all.
    pub allowed_hosts: Vec<String>,
    /// Origins whose scripts may send requests. `*` allows all.
    pub cors_origins: Vec<String>,
    /// Log and traces.
    pub telemetry: TelemetryConfig,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            keys: Keys::default(),
            max_body: 8 << 20,
            max_bodies: 256 << 20,
            max_answer: 64 << 20,
            max_headers: 64 << 10,
            max_connections: 8192,
            time_limit: Duration::from_mins(1),
            read_limit: Duration::from_secs(20),
            write_limit: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            linger: Duration::from_millis(300),
            tls: None,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            telemetry: TelemetryConfig::default(),
        }
    }
}
