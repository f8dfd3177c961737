//! How a server is to behave, where it is not the default.

use std::time::Duration;

use crate::keys::Keys;

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
    /// Bytes of all bodies at once.
    pub max_bodies: usize,
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
    /// How long requests may take to finish after the server was told to stop.
    pub grace: Duration,
    /// How long connections are still taken after that, so that what was sent before is answered.
    pub linger: Duration,
    /// How long a placement that was taken out of service waits for its first new try.
    pub return_after: Duration,
    /// Threads that work on text.
    pub text_threads: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            keys: Keys::default(),
            strict: false,
            any_model: false,
            max_inputs: 2048,
            max_body: 8 << 20,
            max_bodies: 48 << 20,
            max_headers: 64 << 10,
            max_connections: 8192,
            max_numbers: 4 << 20,
            queue_seconds: 2.0,
            time_limit: Duration::from_mins(1),
            read_limit: Duration::from_secs(20),
            grace: Duration::from_secs(30),
            linger: Duration::from_millis(300),
            return_after: Duration::from_secs(30),
            text_threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}
