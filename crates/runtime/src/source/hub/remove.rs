//! Removes models from the cache.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::cache::{self, Repository};
use super::config::Hub;
use super::error::HubError;
use super::gguf;

/// What was removed from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedModel {
    /// Number of files.
    pub files: usize,
    /// Size of their contents in bytes. Contents that another revision uses are kept and not counted.
    pub bytes: u64,
}

impl Hub {
    /// Removes a model from the cache: all its revisions, or one. Contents that another revision uses are kept.
    pub fn remove(&self, id: &str, revision: Option<&str>) -> Result<RemovedModel, HubError> {
        self.remove_files(id, revision, &|_| true)
    }

    /// Removes the files of one quantization from the cache: `quantization` is a word of their names, or the path of a file.
    pub fn remove_gguf(
        &self,
        id: &str,
        revision: Option<&str>,
        quantization: &str,
    ) -> Result<RemovedModel, HubError> {
        self.remove_files(id, revision, &|name| name == quantization || gguf::has(name, quantization))
    }

    fn remove_files(
        &self,
        id: &str,
        revision: Option<&str>,
        removed: &dyn Fn(&str) -> bool,
    ) -> Result<RemovedModel, HubError> {
        let repository = Repository::new(&self.cache, id, revision.unwrap_or("main"))?;
        let nothing = || HubError::NothingToRemove { id: id.to_owned(), cache: self.cache.clone() };
        let failed = |path: &Path, source| HubError::Cache { path: path.to_owned(), source };
        if is_downloading(&repository.blobs()) {
            return Err(HubError::Busy { id: id.to_owned() });
        }
        let chosen = match revision {
            Some(_) => BTreeSet::from([repository.cached_commit().ok_or_else(nothing)?]),
            None => commits(&repository),
        };
        let (mut gone, mut kept) = (Vec::new(), BTreeSet::new());
        for commit in commits(&repository) {
            for (name, path) in cache::files(&repository.snapshot(&commit)) {
                if chosen.contains(&commit) && removed(&name) {
                    gone.push(path);
                } else {
                    kept.insert(content(&path));
                }
            }
        }
        if gone.is_empty() {
            return Err(nothing());
        }
        if kept.is_empty() {
            let contents: BTreeSet<PathBuf> = gone.iter().map(|path| content(path)).collect();
            let bytes = contents.iter().map(|path| size(path)).sum();
            let folder = repository.folder();
            fs::remove_dir_all(folder).map_err(|source| failed(folder, source))?;
            return Ok(RemovedModel { files: gone.len(), bytes });
        }
        let mut bytes = 0;
        for path in &gone {
            let content = content(path);
            if !kept.contains(&content) && content.exists() {
                bytes += size(&content);
                fs::remove_file(&content).map_err(|source| failed(&content, source))?;
            }
            match fs::remove_file(path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(failed(path, source)),
                Ok(()) | Err(_) => {}
            }
        }
        remove_empty(&repository, &chosen);
        Ok(RemovedModel { files: gone.len(), bytes })
    }
}

/// The commits with a snapshot folder.
fn commits(repository: &Repository) -> BTreeSet<String> {
    let entries = fs::read_dir(repository.folder().join("snapshots")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The file that a link of a snapshot leads to.
fn content(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Removes snapshot folders without files, and the refs that name their commits.
fn remove_empty(repository: &Repository, chosen: &BTreeSet<String>) {
    for commit in chosen {
        let snapshot = repository.snapshot(commit);
        if !cache::files(&snapshot).is_empty() {
            continue;
        }
        let _ = fs::remove_dir_all(&snapshot);
        for (_, reference) in cache::files(&repository.folder().join("refs")) {
            if fs::read_to_string(&reference).is_ok_and(|text| text.trim() == commit) {
                let _ = fs::remove_file(&reference);
            }
        }
    }
}

/// Whether another process holds the lock of a blob.
fn is_downloading(blobs: &Path) -> bool {
    let locks = cache::files(blobs).into_iter().map(|(_, path)| path);
    let mut locks = locks.filter(|path| path.extension().is_some_and(|kind| kind == "lock"));
    locks.any(|path| {
        File::open(path).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
    })
}
