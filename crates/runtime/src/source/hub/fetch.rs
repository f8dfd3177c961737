//! Fetches a model into the cache.

use std::path::PathBuf;

use super::cache::{self, CachedModel, Repository};
use super::client::Client;
use super::config::{Hub, Progress};
use super::download;
use super::error::HubError;
use super::listing::{File, Listing};

impl Hub {
    /// The snapshot folder of `id` at `revision`. Fetches the `wanted` files that the cache lacks.
    ///
    /// The ref is written last: an interrupted fetch leaves no complete revision, and the next fetch resumes it.
    pub fn fetch(
        &self,
        id: &str,
        revision: &str,
        wanted: &dyn Fn(&str) -> bool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let repository = Repository::new(&self.cache, id, revision)?;
        if self.offline {
            return repository.complete_snapshot(wanted, &self.graphs);
        }
        let select = |listing: &Listing| Ok(listing.select(wanted, &self.graphs));
        match self.fetch_from_hub(&repository, &select, progress) {
            Err(error) if error.is_transient() => match repository.complete_snapshot(wanted, &self.graphs) {
                Ok(folder) => {
                    progress(Progress::FromCache { why: &error });
                    Ok(folder)
                }
                Err(_) => Err(error),
            },
            other => other,
        }
    }

    /// The models in the cache, sorted by id and revision.
    pub fn cached(&self) -> Vec<CachedModel> {
        cache::models(&self.cache)
    }

    /// Fetches the files that `select` chooses, and returns the snapshot folder.
    pub(super) fn fetch_from_hub(
        &self,
        repository: &Repository,
        select: &dyn Fn(&Listing) -> Result<Vec<File>, HubError>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, HubError> {
        let client = Client::new(self, repository)?;
        let listing = client.list()?;
        let mut files = select(&listing)?;
        if files.is_empty() {
            return Err(HubError::NoUsableFiles {
                id: repository.id.clone(),
                revision: repository.revision.clone(),
            });
        }
        let snapshot = repository.snapshot(&listing.commit);
        files.retain(|file| !cache::is_complete(&snapshot.join(&file.name), file.size));
        progress(Progress::Listed { files: files.len(), bytes: files.iter().map(|file| file.size).sum() });
        for file in &files {
            download::download(&client, repository, &listing.commit, file, progress)?;
        }
        repository.write_reference(&listing.commit)?;
        Ok(snapshot)
    }
}
