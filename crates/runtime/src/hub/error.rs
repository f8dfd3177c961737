//! What can go wrong between here and the hub, and what would help.

use std::io;
use std::path::PathBuf;

use hf_hub::api::sync::ApiError;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The id is not of the form that the hub uses.
    #[error(
        "not a model's id: `{id}`\nhint: an id is `owner/name` or `name`, of letters, digits, `.`, `_` and `-`"
    )]
    BadId {
        /// What was given.
        id: String,
    },
    /// The revision is not of the form that the hub uses.
    #[error("not a revision: `{revision}`\nhint: a revision is a branch, a tag or a commit, such as `main`")]
    BadRevision {
        /// What was given.
        revision: String,
    },
    /// The endpoint is not an address.
    #[error("not an address of a hub: `{endpoint}`\nhint: `HF_ENDPOINT` starts with `https://` or `http://`")]
    BadEndpoint {
        /// What was given.
        endpoint: String,
    },
    /// The token holds characters that no token has.
    #[error(
        "the token is not of printable characters\nhint: check `HF_TOKEN`, or the file `token` in `HF_HOME`"
    )]
    BadToken,
    /// The cache does not hold the model, and the network may not be used.
    #[error(
        "`{id}` at `{revision}` is not whole in the cache `{}`, missing: {}\n\
         hint: fetch it once with the network: `sconce plan {id}`", cache.display(), list(missing)
    )]
    NotCached {
        /// The model.
        id: String,
        /// Its revision.
        revision: String,
        /// Where it was looked for.
        cache: PathBuf,
        /// The files that are missing, as far as they can be known; none where the cache knows nothing of it.
        missing: Vec<String>,
    },
    /// The hub does not show the model to who asks.
    #[error(
        "the hub does not show us `{id}`, its status: {status}\nhint: check the id; if the model is private or gated, \
         accept its licence at `{endpoint}/{id}` and set `HF_TOKEN` to a token of that account"
    )]
    Forbidden {
        /// The model.
        id: String,
        /// The hub that was asked.
        endpoint: String,
        /// 401 or 403.
        status: u16,
    },
    /// The hub knows no such model or no such revision of it.
    #[error(
        "the hub `{endpoint}` has no model `{id}` at revision `{revision}`\nhint: check the id and the revision"
    )]
    NotFound {
        /// The model.
        id: String,
        /// Its revision.
        revision: String,
        /// The hub that was asked.
        endpoint: String,
    },
    /// The hub answers, and not with what was asked for.
    #[error("the hub's answer for `{id}` was of no use, its status: {status}\nhint: {}", status_hint(*status))]
    Status {
        /// The model.
        id: String,
        /// The status.
        status: u16,
    },
    /// The hub can't be reached, or stopped answering.
    #[error(
        "the hub can't be reached at `{endpoint}`\nhint: check the network, `HF_ENDPOINT` and `HTTPS_PROXY`"
    )]
    Unreachable {
        /// The hub that was asked.
        endpoint: String,
        /// What the client said.
        source: ApiError,
    },
    /// A file stopped coming, again and again.
    #[error("`{file}` stopped at {done} of {total} bytes\nhint: run it again: it goes on where it stopped")]
    Interrupted {
        /// The file.
        file: String,
        /// Bytes that are there.
        done: u64,
        /// Bytes that it has.
        total: u64,
        /// What the connection said.
        source: io::Error,
    },
    /// A file came, and it is not what the hub's list says.
    #[error(
        "`{file}` is not what the hub listed: {what}\n\
         hint: run it again; if this stays, the hub or a proxy before it is broken"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// What differs.
        what: String,
    },
    /// The hub names something that would lead out of the cache or to an unsafe place.
    #[error("the hub's answer is hostile, its {what}: `{value}`\nhint: do not use this hub or this model")]
    Hostile {
        /// What it names.
        what: &'static str,
        /// How.
        value: String,
    },
    /// The hub's list can't be read.
    #[error("the hub's list of files of `{id}` can't be read\nhint: check that `HF_ENDPOINT` is a hub")]
    Unreadable {
        /// The model.
        id: String,
        /// What the reader said.
        source: serde_json::Error,
    },
    /// The hub's list holds no file that is wanted.
    #[error("`{id}` at `{revision}` has no file that is of use here\nhint: choose a model with safetensors")]
    NothingWanted {
        /// The model.
        id: String,
        /// Its revision.
        revision: String,
    },
    /// The cache can't be read or written.
    #[error("the cache can't be used at `{}`\nhint: check its permissions and the free space, or set `HF_HOME`", path.display())]
    Cache {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HubError {
    /// Whether it lies with the network or a busy hub, so that it may pass by itself.
    pub fn may_pass(&self) -> bool {
        match self {
            HubError::Unreachable { .. } | HubError::Interrupted { .. } => true,
            HubError::Status { status, .. } => *status == 429 || *status >= 500,
            HubError::BadId { .. }
            | HubError::BadRevision { .. }
            | HubError::BadEndpoint { .. }
            | HubError::BadToken
            | HubError::NotCached { .. }
            | HubError::Forbidden { .. }
            | HubError::NotFound { .. }
            | HubError::Corrupt { .. }
            | HubError::Hostile { .. }
            | HubError::Unreadable { .. }
            | HubError::NothingWanted { .. }
            | HubError::Cache { .. } => false,
        }
    }
}

fn list(missing: &[String]) -> String {
    if missing.is_empty() { "all of it".to_owned() } else { format!("`{}`", missing.join("`, `")) }
}

fn status_hint(status: u16) -> &'static str {
    match status {
        429 => "too many requests: wait, or set `HF_TOKEN`",
        500.. => "the hub is in trouble: try again later",
        _ => "run it again; if this stays, check that `HF_ENDPOINT` is a hub",
    }
}
