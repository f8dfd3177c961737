//! What a model says of itself, before its weights are fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sconce_core::card::ModelCard;

use crate::card::{self, Overrides};
use crate::error::Error;
use crate::hub::{self, Hub};
use crate::source::ModelSource;

/// What the model says of itself, from its settings and the headers of its weights: a folder's, the cache's, or the
/// hub's, of which only those are fetched.
pub fn inspect(source: &ModelSource, overrides: &Overrides, offline: bool) -> Result<ModelCard, Error> {
    let read = |folder: &Path| Ok(card::read(&source.to_string(), folder, overrides)?.card);
    match source {
        ModelSource::Folder(folder) => read(folder),
        ModelSource::Hub { id, revision, graphs } => {
            let mut hub = Hub { graphs: graphs.clone(), ..Hub::from_environment() };
            hub.offline |= offline;
            if let Some(folder) = hub.cached_whole(id, revision, &hub::is_wanted) {
                return read(&folder);
            }
            let folder = Passing::new();
            hub.peek(id, revision, &hub::is_wanted, &folder.0)?;
            read(&folder.0)
        }
    }
}

/// A folder that goes away.
struct Passing(PathBuf);

impl Passing {
    fn new() -> Passing {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Passing(std::env::temp_dir().join(format!("sconce-inspect-{}-{number}", std::process::id())))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
