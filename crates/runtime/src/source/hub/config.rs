//! Settings of a hub, and progress events of a fetch.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::error::HubError;
use super::graphs::Graphs;

/// A hub and its cache.
#[derive(Clone)]
pub struct Hub {
    /// Cache folder, the parent of `models--owner--name`.
    pub cache: PathBuf,
    /// Base URL, without a trailing slash.
    pub endpoint: String,
    /// Access token. It is sent to the endpoint and to no other host.
    pub token: Option<String>,
    /// Use the cache only, and open no socket.
    pub offline: bool,
    /// Timeout of name resolution, connection, response headers and each read.
    pub timeout: Duration,
    /// Which ONNX graph to fetch beside the model files.
    pub graphs: Graphs,
}

/// Progress of [`Hub::fetch`].
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The file list arrived.
    Listed {
        /// Files that the cache lacks.
        files: usize,
        /// Their size in bytes, if the hub reports it.
        bytes: Option<u64>,
    },
    /// A file is being downloaded.
    File {
        /// Its name in the repository.
        name: &'a str,
        /// Bytes downloaded.
        done: u64,
        /// Size in bytes.
        total: u64,
    },
    /// Another process holds the lock of this file.
    Waiting {
        /// Its name in the repository.
        name: &'a str,
    },
    /// The hub is unavailable, and the cached revision is used.
    FromCache {
        /// The hub's error.
        why: &'a HubError,
    },
}

/// The token is redacted.
impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .field("timeout", &self.timeout)
            .field("graphs", &self.graphs)
            .finish()
    }
}
