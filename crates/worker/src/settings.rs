//! Settings of a worker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use sconce_registry::{NatsOptions, Registry};

/// Maximum number of inputs that a body is parsed for at all.
pub(crate) const MAX_INPUTS: usize = 1 << 14;

/// Settings of a worker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The HTTP edge: listener, keys, limits, TLS, telemetry.
    pub http: sconce_http::Settings,
    /// Whether unknown fields of a request are rejected.
    pub strict: bool,
    /// Whether any `model` name is served by the only model there is.
    pub any_model: bool,
    /// Maximum number of inputs of one request.
    pub max_inputs: usize,
    /// Maximum number of values in one response of token embeddings.
    pub max_values: usize,
    /// Seconds of measured work that may wait in a queue.
    pub queue_seconds: f64,
    /// Maximum number of outputs of a model that are generated or wait.
    pub max_generations: usize,
    /// Initial backoff before a quarantined placement is tried again.
    pub recovery_backoff: Duration,
    /// Number of threads that tokenize and parse.
    pub text_threads: usize,
    /// Maximum bytes of memory of the process: models are loaded and evicted within it.
    pub memory_limit: Option<u64>,
    /// Idle time after which a model is unloaded. None keeps it.
    pub idle_unload: Option<Duration>,
    /// How long a request waits for a model that is loading, unless it says so itself.
    pub load_wait: Duration,
    /// One batch in this many is computed again on the reference. 0 turns the check off.
    pub shadow_every: u64,
    /// Sources that operators may load at run time. One that ends with `*` is a prefix.
    pub model_sources: Vec<String>,
    /// Its registration in a pool.
    pub worker: Worker,
}

/// The registration of a worker in a pool.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    /// Its id, unique in its pool.
    pub id: String,
    /// The URL that it is reached by, if that is not the address that it listens on.
    pub url: Option<String>,
    /// The pool manager that it calls.
    pub callback: Option<Callback>,
    /// Interval of heartbeats to the pool manager.
    pub heartbeat: Option<Duration>,
    /// The registry of its pool.
    pub registry: Option<PoolRegistry>,
}

/// The registry of a pool.
#[derive(Clone)]
pub enum PoolRegistry {
    /// On NATS.
    Nats(Box<NatsOptions>),
    /// Shared with others in this process.
    Shared(Arc<dyn Registry>),
}

impl fmt::Debug for PoolRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolRegistry::Nats(options) => options.fmt(f),
            PoolRegistry::Shared(_) => f.write_str("Shared"),
        }
    }
}

/// A pool manager that a worker calls.
#[derive(Clone, PartialEq, Eq)]
pub struct Callback {
    /// The URL of the calls.
    pub url: String,
    /// The key that signs them. An empty key signs nothing.
    pub token: String,
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            http: sconce_http::Settings::default(),
            strict: false,
            any_model: false,
            max_inputs: 2048,
            max_values: 4 << 20,
            queue_seconds: 2.0,
            max_generations: 512,
            recovery_backoff: Duration::from_secs(30),
            text_threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_limit: None,
            idle_unload: None,
            load_wait: Duration::from_secs(30),
            shadow_every: 0,
            model_sources: Vec::new(),
            worker: Worker::default(),
        }
    }
}

impl Settings {
    /// The settings of the edge: requests in flight take at most an eighth of the memory limit, and the advertised host
    /// is allowed.
    pub(crate) fn edge(&self) -> sconce_http::Settings {
        let mut http = self.http.clone();
        http.max_bodies = self.in_flight_bytes();
        let advertised = self.worker.url.as_ref().and_then(|url| url.parse::<Uri>().ok());
        http.allowed_hosts.extend(advertised.as_ref().and_then(Uri::host).map(str::to_owned));
        http
    }

    fn in_flight_bytes(&self) -> usize {
        let share = self.memory_limit.map(|limit| usize::try_from(limit / 8).unwrap_or(usize::MAX));
        share.map_or(self.http.max_bodies, |share| share.min(self.http.max_bodies))
    }

    /// The memory limit of models: what requests in flight may take is not theirs.
    pub(crate) fn models_limit(&self) -> Option<u64> {
        self.memory_limit.map(|limit| limit - self.in_flight_bytes() as u64)
    }
}
