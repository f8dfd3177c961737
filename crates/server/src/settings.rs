//! How a server is to behave, where it is not the default.

use std::fmt;
use std::time::Duration;

use crate::keys::Keys;
use crate::telemetry::TelemetryConfig;
use crate::tls::Tls;

/// The most inputs that a body is read for at all.
pub(crate) const MOST_INPUTS: usize = 1 << 14;

/// How a server is to behave.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Keys that are let in; none lets everybody in.
    pub keys: Keys,
    /// Whether fields that nobody reads are refused.
    pub strict: bool,
    /// Whether any `model` is served by the one there is.
    pub any_model: bool,
    /// Inputs of one request.
    pub max_inputs: usize,
    /// Bytes of one body.
    pub max_body: usize,
    /// Bytes of all bodies, computed rows and answers in flight at once. Under a `memory_limit` an eighth of that is
    /// the most.
    pub max_bodies: usize,
    /// Bytes of one answer.
    pub max_answer: usize,
    /// Bytes of a request's headers.
    pub max_headers: usize,
    /// Connections at once.
    pub max_connections: usize,
    /// Numbers of one answer of token vectors.
    pub max_numbers: usize,
    /// Seconds of measured work that may wait.
    pub queue_seconds: f64,
    /// How long a request may take in all.
    pub time_limit: Duration,
    /// How long a client may take to send its headers, and again its body.
    pub read_limit: Duration,
    /// How long a client may take to accept the next bytes of an answer, before its connection is closed.
    pub write_limit: Duration,
    /// How long requests may take to finish after the server was told to stop.
    pub grace: Duration,
    /// How long connections are still taken after that, so that what was sent before is answered.
    pub linger: Duration,
    /// How long a placement that was taken out of service waits for its first new try.
    pub return_after: Duration,
    /// Threads that work on text.
    pub text_threads: usize,
    /// Bytes of memory that the process may have: models are loaded and unloaded so that it has no more.
    pub memory_limit: Option<u64>,
    /// How long after its last request a model is unloaded; none keeps it.
    pub idle_unload: Option<Duration>,
    /// How long a request waits for a model that is being loaded, unless it says so itself.
    pub load_wait: Duration,
    /// One batch in so many is computed again on the reference; 0 is none.
    pub shadow_every: u64,
    /// Who it is in a pool.
    pub worker: Worker,
    /// The certificate that connections are taken under; none takes them as they are.
    pub tls: Option<Tls>,
    /// Host names that requests may name where there are no keys, beside loopback names and the address that the
    /// server listens on; `*` is all.
    pub allowed_hosts: Vec<String>,
    /// Pages whose scripts may ask, by their origins; `*` is all.
    pub cors_origins: Vec<String>,
    /// What is to be seen of it: its log and its traces.
    pub telemetry: TelemetryConfig,
}

/// Who a server is in a pool, and whom it tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// Its name there.
    pub id: String,
    /// The address that others reach it by, where it is not the one that it listens on.
    pub url: Option<String>,
    /// Whom it tells.
    pub callback: Option<Callback>,
    /// How often it tells that it is alive.
    pub heartbeat: Option<Duration>,
}

/// Whom a worker tells of itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Callback {
    /// Where calls are sent.
    pub url: String,
    /// What they are signed with; empty is not at all.
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
            keys: Keys::default(),
            strict: false,
            any_model: false,
            max_inputs: 2048,
            max_body: 8 << 20,
            max_bodies: 256 << 20,
            max_answer: 64 << 20,
            max_headers: 64 << 10,
            max_connections: 8192,
            max_numbers: 4 << 20,
            queue_seconds: 2.0,
            time_limit: Duration::from_mins(1),
            read_limit: Duration::from_secs(20),
            write_limit: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            linger: Duration::from_millis(300),
            return_after: Duration::from_secs(30),
            text_threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_limit: None,
            idle_unload: None,
            load_wait: Duration::from_secs(30),
            shadow_every: 0,
            worker: Worker::default(),
            tls: None,
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl Settings {
    /// The memory budget of requests in flight.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        let share = self.memory_limit.map(|limit| usize::try_from(limit / 8).unwrap_or(usize::MAX));
        share.map_or(self.max_bodies, |share| share.min(self.max_bodies))
    }

    /// The memory limit of models: what requests in flight may take is not theirs.
    pub(crate) fn models_limit(&self) -> Option<u64> {
        self.memory_limit.map(|limit| limit - self.in_flight_bytes() as u64)
    }
}
