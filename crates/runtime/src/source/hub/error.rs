//! Errors of fetching models from the hub.

use std::io;
use std::path::PathBuf;

use hf_hub::api::sync::ApiError;

/// Error of fetching a model from the hub.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Invalid id.
    #[error(
        "invalid model id: `{id}`\nhint: an id is `owner/name` or `name`, of letters, digits, `.`, `_` and `-`"
    )]
    BadId {
        /// The id.
        id: String,
    },
    /// Invalid revision.
    #[error(
        "invalid revision: `{revision}`\nhint: a revision is a branch, a tag or a commit, such as `main`"
    )]
    BadRevision {
        /// The revision.
        revision: String,
    },
    /// The endpoint is not a URL.
    #[error("invalid hub endpoint: `{endpoint}`\nhint: `HF_ENDPOINT` starts with `https://` or `http://`")]
    BadEndpoint {
        /// The endpoint.
        endpoint: String,
    },
    /// The token contains invalid characters.
    #[error(
        "the token contains unprintable characters\nhint: check `HF_TOKEN`, or the file `token` in `HF_HOME`"
    )]
    BadToken,
    /// The model is not completely cached, and the network is not used.
    #[error(
        "`{id}` at `{revision}` is incomplete in the cache `{}`, missing: {}\n\
         hint: fetch it once with the network: `sconce pull {id}`", cache.display(), list(missing)
    )]
    NotCached {
        /// Repository id.
        id: String,
        /// Revision.
        revision: String,
        /// Cache folder.
        cache: PathBuf,
        /// Missing files; empty if the model is not cached at all.
        missing: Vec<String>,
    },
    /// The model is not cached, so it can't be removed.
    #[error("no files of `{id}` in the cache `{}`\nhint: `sconce models` lists the models there", cache.display())]
    NothingToRemove {
        /// Repository id.
        id: String,
        /// Cache folder.
        cache: PathBuf,
    },
    /// Another process downloads files of the model.
    #[error("another process downloads `{id}`\nhint: wait until it is done, or stop it")]
    Busy {
        /// Repository id.
        id: String,
    },
    /// Access denied.
    #[error(
        "the hub denies access to `{id}`, status: {status}\nhint: check the id; if the model is private or gated, \
         accept its licence at `{endpoint}/{id}` and set `HF_TOKEN` to a token of that account"
    )]
    Forbidden {
        /// Repository id.
        id: String,
        /// Base URL of the hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
    },
    /// No such model or revision.
    #[error(
        "the hub `{endpoint}` has no model `{id}` at revision `{revision}`\nhint: check the id and the revision"
    )]
    NotFound {
        /// Repository id.
        id: String,
        /// Revision.
        revision: String,
        /// Base URL of the hub.
        endpoint: String,
    },
    /// Unexpected status.
    #[error("unexpected response of the hub for `{id}`, status: {status}\nhint: {}", status_hint(*status))]
    Status {
        /// Repository id.
        id: String,
        /// HTTP status.
        status: u16,
    },
    /// Network error or timeout.
    #[error(
        "the hub can't be reached at `{endpoint}`\nhint: check the network, `HF_ENDPOINT` and `HTTPS_PROXY`"
    )]
    Unreachable {
        /// Base URL of the hub.
        endpoint: String,
        /// Error of the HTTP client.
        source: ApiError,
    },
    /// The download was interrupted repeatedly.
    #[error("the download of `{file}` stopped at {done} of {total} bytes\nhint: run it again to resume")]
    Interrupted {
        /// File name.
        file: String,
        /// Bytes downloaded.
        done: u64,
        /// Size in bytes.
        total: u64,
        /// Error of the connection.
        source: io::Error,
    },
    /// A downloaded file does not match the file list.
    #[error(
        "`{file}` does not match the file list of the hub: {what}\n\
         hint: run it again; if it persists, the hub or a proxy is broken"
    )]
    Corrupt {
        /// File name.
        file: String,
        /// The difference.
        what: String,
    },
    /// A response would escape the cache or redirect to an unsafe URL.
    #[error("unsafe response of the hub, {what}: `{value}`\nhint: do not use this hub or this model")]
    Hostile {
        /// Kind of the value.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// The file list is not valid JSON.
    #[error("the file list of `{id}` is not valid JSON\nhint: check that `HF_ENDPOINT` is a hub")]
    Unreadable {
        /// Repository id.
        id: String,
        /// Parse error.
        source: serde_json::Error,
    },
    /// The repository has no usable file.
    #[error(
        "`{id}` at `{revision}` has no usable files\n\
         hint: choose a model with safetensors, or a GGUF file by its quantization, such as `{id}:Q4_K_M`"
    )]
    NoUsableFiles {
        /// Repository id.
        id: String,
        /// Revision.
        revision: String,
    },
    /// No GGUF file of the repository has this quantization.
    #[error(
        "`{id}` has no GGUF file with `{quantization}` in its name, available: {}\n\
         hint: write a word of one of these names after the id, such as `{id}:Q4_K_M`",
        available(files)
    )]
    NoQuantization {
        /// Repository id.
        id: String,
        /// The requested quantization.
        quantization: String,
        /// The GGUF files of the repository.
        files: Vec<String>,
    },
    /// Several GGUF files of the repository have this quantization.
    #[error(
        "`{id}` has several GGUF files with `{quantization}` in their names: {}\n\
         hint: name the file: `{id}:{}`", available(files), files.first().map_or("", String::as_str)
    )]
    AmbiguousQuantization {
        /// Repository id.
        id: String,
        /// The requested quantization.
        quantization: String,
        /// The files.
        files: Vec<String>,
    },
    /// I/O error in the cache.
    #[error("I/O error in the cache at `{}`\nhint: check permissions and free space, or set `HF_HOME`", path.display())]
    Cache {
        /// The path.
        path: PathBuf,
        /// I/O error.
        source: io::Error,
    },
}

impl HubError {
    /// Whether a retry may succeed: network errors and an overloaded hub.
    pub fn is_transient(&self) -> bool {
        match self {
            HubError::Unreachable { .. } | HubError::Interrupted { .. } => true,
            HubError::Status { status, .. } => *status == 429 || *status >= 500,
            HubError::BadId { .. }
            | HubError::BadRevision { .. }
            | HubError::BadEndpoint { .. }
            | HubError::BadToken
            | HubError::NotCached { .. }
            | HubError::NothingToRemove { .. }
            | HubError::Busy { .. }
            | HubError::Forbidden { .. }
            | HubError::NotFound { .. }
            | HubError::Corrupt { .. }
            | HubError::Hostile { .. }
            | HubError::Unreadable { .. }
            | HubError::NoUsableFiles { .. }
            | HubError::NoQuantization { .. }
            | HubError::AmbiguousQuantization { .. }
            | HubError::Cache { .. } => false,
        }
    }
}

fn list(missing: &[String]) -> String {
    if missing.is_empty() { "all files".to_owned() } else { format!("`{}`", missing.join("`, `")) }
}

fn available(files: &[String]) -> String {
    if files.is_empty() { "none".to_owned() } else { format!("`{}`", files.join("`, `")) }
}

fn status_hint(status: u16) -> &'static str {
    match status {
        429 => "too many requests: wait, or set `HF_TOKEN`",
        500.. => "the hub has an internal error: try again later",
        _ => "run it again; if it persists, check that `HF_ENDPOINT` is a hub",
    }
}
