//! Models from the Hugging Face hub, by way of the cache that Python's tools share.
//!
//! `hf-hub` brings the client and the layout of the cache. Its own download is not used: it sends the token to
//! whichever host a file redirects to, and takes a file of the wrong length for whole.

mod cache;
mod client;
mod download;
mod error;
mod graphs;
mod listing;
mod names;
mod part;
mod peek;
mod settings;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use cache::CachedModel;
pub use error::HubError;
pub use graphs::Graphs;
pub(crate) use names::is_hostile;
pub use names::is_wanted;

use cache::Repository;
use client::Client;

/// Where models come from and where they are kept.
#[derive(Clone)]
pub struct Hub {
    /// The folder that holds `models--owner--name`.
    pub cache: PathBuf,
    /// The hub's address, without a slash at its end.
    pub endpoint: String,
    /// What shows the hub who asks; sent to the endpoint and to no other host.
    pub token: Option<String>,
    /// Whether to answer from the cache alone: no socket is opened.
    pub offline: bool,
    /// How long a silent hub is waited for.
    pub timeout: Duration,
    /// Which graph is fetched beside what is wanted.
    pub graphs: Graphs,
}

/// What `fetch` is doing.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// The hub has listed the model; this much of it is not in the cache yet.
    Listed {
        /// Files to come.
        files: usize,
        /// Bytes to come, where the hub said how many.
        bytes: Option<u64>,
    },
    /// A file is coming in.
    File {
        /// Its name in the model.
        name: &'a str,
        /// Bytes of it that are there.
        done: u64,
        /// Bytes that it has.
        total: u64,
    },
    /// Another process is fetching this file, and is waited for.
    Waiting {
        /// Its name in the model.
        name: &'a str,
    },
    /// The hub could not be used; what the cache holds of the revision is.
    FromCache {
        /// What stood in the way.
        why: &'a HubError,
    },
}

impl Hub {
    /// The hub that the environment names: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `XDG_CACHE_HOME`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`, read as Python's `huggingface_hub` does.
    pub fn from_environment() -> Hub {
        settings::read(&|name| std::env::var(name).ok(), std::env::home_dir())
    }

    /// The folder with the `wanted` files of `id` at `revision`, fetched where the cache lacks them.
    ///
    /// The revision's reference is written last, so an interrupted fetch is never taken for a whole one, and what
    /// arrived is not fetched again.
    pub fn fetch(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let repository = Repository::new(&self.cache, id, revision)?;
        if self.offline {
            return repository.whole(wanted, &self.graphs);
        }
        match self.fetch_from_hub(&repository, wanted, progress) {
            Err(error) if error.may_pass() => match repository.whole(wanted, &self.graphs) {
                Ok(folder) => {
                    progress(Progress::FromCache { why: &error });
                    Ok(folder)
                }
                Err(_) => Err(error),
            },
            other => other,
        }
    }

    /// The models in the cache, by id and revision.
    pub fn cached(&self) -> Vec<CachedModel> {
        cache::models(&self.cache)
    }

    fn fetch_from_hub(
        &self,
        repository: &Repository,
        wanted: &dyn Fn(&str) -> bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let client = Client::new(self, repository)?;
        let listing = client.list()?;
        let mut files = listing.pick(wanted, &self.graphs);
        if files.is_empty() {
            return Err(HubError::NothingWanted {
                id: repository.id.clone(),
                revision: repository.revision.clone(),
            });
        }
        let snapshot = repository.snapshot(&listing.commit);
        files.retain(|file| !cache::is_whole(&snapshot.join(&file.name), file.size));
        progress(Progress::Listed { files: files.len(), bytes: files.iter().map(|file| file.size).sum() });
        for file in &files {
            download::download(&client, repository, &listing.commit, file, progress)?;
        }
        repository.write_reference(&listing.commit)?;
        Ok(snapshot)
    }
}

/// The token is not shown.
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
