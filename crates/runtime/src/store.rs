//! Evidence on disk: one small JSON file a finding, named by a hash of all that it depends on.

use std::fs;
use std::path::{Path, PathBuf};

use sconce_core::placement::Placement;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::fingerprint::{Fingerprint, hash};

/// A folder of findings.
pub(crate) struct Store {
    folder: PathBuf,
}

/// What a finding is about.
#[derive(Serialize)]
pub(crate) struct Key<'a> {
    /// `twin`, `speed` or `canary`.
    pub(crate) kind: &'a str,
    pub(crate) fingerprint: &'a Fingerprint,
    /// What of the model matters for this kind.
    pub(crate) subject: &'a str,
    pub(crate) placement: &'a Placement,
}

#[derive(Deserialize)]
struct Record<T> {
    found: T,
}

impl Store {
    pub(crate) fn new(folder: PathBuf) -> Store {
        Store { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &Key<'_>) -> PathBuf {
        self.folder.join(format!("{}-{}.json", key.kind, hash(key)))
    }

    /// What was found about `key`; none where nothing was, or the file can't be read.
    pub(crate) fn get<T: DeserializeOwned>(&self, key: &Key<'_>) -> Option<T> {
        let bytes = fs::read(self.path(key)).ok()?;
        serde_json::from_slice::<Record<T>>(&bytes).ok().map(|record| record.found)
    }

    /// Keeps what was found. Evidence that can't be kept is gathered again: a full disk stops nobody.
    pub(crate) fn put<T: Serialize>(&self, key: &Key<'_>, found: &T) {
        let record = serde_json::json!({ "about": key, "found": found });
        let path = self.path(key);
        let draft = path.with_extension(format!("{}.draft", std::process::id()));
        let written = fs::create_dir_all(&self.folder)
            .and_then(|()| fs::write(&draft, serde_json::to_vec_pretty(&record).unwrap_or_default()))
            .and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
    }

    /// How many findings are kept.
    pub(crate) fn count(&self) -> usize {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json")).count()
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
