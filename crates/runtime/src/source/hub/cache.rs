//! The cache on disk, in the layout of Python's `huggingface_hub`: `blobs/` by content hash, `snapshots/<commit>/` with
//! symlinks to them, `refs/<revision>` with a commit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Repo, RepoType};
use sconce_engines::gguf::split;
use serde_json::Value;

use super::error::HubError;
use super::graphs::Graphs;
use super::names::{check_id, check_revision, is_commit, is_plain, is_unsafe_path, is_wanted};

/// A cached model at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Repository id.
    pub id: String,
    /// Branch or tag; the commit if no ref names it.
    pub revision: String,
    /// Commit hash.
    pub commit: String,
    /// Size of its files in bytes.
    pub bytes: u64,
    /// Snapshot folder.
    pub folder: PathBuf,
    /// Whether all files that the model needs are cached.
    pub complete: bool,
}

/// The cache folder of a repository, at one revision.
#[derive(Debug)]
pub(super) struct Repository {
    /// Repository id.
    pub(super) id: String,
    /// Branch, tag or commit.
    pub(super) revision: String,
    cache: PathBuf,
    folder: PathBuf,
}

impl Repository {
    /// Rejects invalid ids and revisions.
    pub(super) fn new(cache: &Path, id: &str, revision: &str) -> Result<Repository, HubError> {
        check_id(id)?;
        check_revision(revision)?;
        let repo = Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned());
        let folder = cache.join(repo.folder_name());
        Ok(Repository { id: id.to_owned(), revision: revision.to_owned(), cache: cache.to_owned(), folder })
    }

    /// Snapshot folder of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Folder of the repository in the cache.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of file contents.
    pub(super) fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// The snapshot folder of the revision, if it has every `wanted` file that a model needs.
    pub(super) fn complete_snapshot(
        &self,
        wanted: &dyn Fn(&str) -> bool,
        graphs: &Graphs,
    ) -> Result<PathBuf, HubError> {
        let missing = match self.cached_commit() {
            Some(commit) => {
                let snapshot = self.snapshot(&commit);
                let missing = missing(&snapshot, wanted, graphs);
                if missing.is_empty() {
                    return Ok(snapshot);
                }
                missing
            }
            None => Vec::new(),
        };
        Err(self.not_cached("", missing))
    }

    /// The error that files are not in the cache; `suffix` follows the id in the model's name.
    pub(super) fn not_cached(&self, suffix: &str, missing: Vec<String>) -> HubError {
        let (revision, cache) = (self.revision.clone(), self.cache.clone());
        HubError::NotCached { id: format!("{}{suffix}", self.id), revision, cache, missing }
    }

    /// The cached commit of the revision.
    pub(super) fn cached_commit(&self) -> Option<String> {
        let text = fs::read_to_string(self.folder.join("refs").join(&self.revision));
        let named = text.ok().map(|text| text.trim().to_owned()).filter(|commit| is_plain(commit));
        named.or_else(|| is_commit(&self.revision).then(|| self.revision.clone()))
    }

    /// Writes the ref of the revision. A commit needs none.
    pub(super) fn write_reference(&self, commit: &str) -> Result<(), HubError> {
        if self.revision == commit || self.cached_commit().as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(&self.revision);
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            fs::write(&path, commit)
        };
        write().map_err(|source| HubError::Cache { path: path.clone(), source })
    }

    /// Links a file of a snapshot to its blob. A correct link is not replaced: another process may be reading through
    /// it.
    pub(super) fn link(&self, commit: &str, name: &str, blob: &str) -> Result<(), HubError> {
        let path = self.snapshot(commit).join(name);
        let content = self.blobs().join(blob);
        let up = "../".repeat(2 + name.matches('/').count());
        let link = || {
            fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
            for _ in 0..3 {
                match link(&format!("{up}blobs/{blob}"), &content, &path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    other => return other,
                }
                if leads_to(&path, &content) {
                    return Ok(());
                }
                fs::remove_file(&path)?;
            }
            Err(io::ErrorKind::AlreadyExists.into())
        };
        link().map_err(|source| HubError::Cache { path: path.clone(), source })
    }
}

#[cfg(unix)]
fn link(relative: &str, _content: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(relative, path)
}

#[cfg(unix)]
fn leads_to(path: &Path, content: &Path) -> bool {
    let file_name = |path: &Path| path.file_name().map(ToOwned::to_owned);
    fs::read_link(path).is_ok_and(|target| file_name(&target) == file_name(content)) && path.exists()
}

/// Symlinks need a privilege on other systems: use a hard link, or a copy.
#[cfg(not(unix))]
fn link(_relative: &str, content: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(content, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => fs::copy(content, path).map(|_| ()),
        other => other,
    }
}

#[cfg(not(unix))]
fn leads_to(path: &Path, content: &Path) -> bool {
    fs::metadata(content).is_ok_and(|content| is_complete(path, Some(content.len())))
}

/// Whether a file exists with the expected size, if known.
pub(super) fn is_complete(path: &Path, size: Option<u64>) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && size.is_none_or(|size| file.len() == size))
}

/// The `wanted` files that every model needs and the snapshot lacks. Python's `huggingface_hub` writes `refs` before the
/// files, and fetches only the files that it uses.
fn missing(snapshot: &Path, wanted: &dyn Fn(&str) -> bool, graphs: &Graphs) -> Vec<String> {
    let mut needed = BTreeSet::from(["config.json".to_owned()]);
    let tokenizers = ["tokenizer.json", "vocab.txt", "vocab.json"];
    if !tokenizers.iter().any(|name| snapshot.join(name).is_file()) {
        needed.insert(tokenizers[0].to_owned());
    }
    let graph = graphs.missing(snapshot);
    // A graph replaces safetensors.
    if graph.is_none() {
        needed.extend(weights(snapshot));
    }
    needed.extend(modules(&read_json(&snapshot.join("modules.json"))));
    needed.retain(|name| wanted(name) && !snapshot.join(name).is_file());
    needed.into_iter().chain(graph.unwrap_or_default()).collect()
}

/// Whether the snapshot has GGUF files, and every file of a split one. Such a file is a model of its own.
fn has_whole_gguf(snapshot: &Path) -> bool {
    let mut files = files(snapshot).into_iter().map(|(_, path)| path);
    let mut files =
        files.by_ref().filter(|path| path.extension().is_some_and(|kind| kind == "gguf")).peekable();
    files.peek().is_some() && files.all(|file| split::files(&file).iter().all(|part| part.is_file()))
}

/// Weight files that a snapshot needs: one, or all shards of its index.
fn weights(snapshot: &Path) -> Vec<String> {
    let one = "model.safetensors".to_owned();
    let index = read_json(&snapshot.join("model.safetensors.index.json"));
    if let (Some(map), false) = (index["weight_map"].as_object(), snapshot.join(&one).is_file()) {
        let shards: BTreeSet<&str> =
            map.values().filter_map(Value::as_str).filter(|name| !is_unsafe_path(name)).collect();
        return shards.into_iter().map(str::to_owned).collect();
    }
    let is_weights =
        |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.ends_with(".safetensors"));
    let has_some = fs::read_dir(snapshot)
        .is_ok_and(|entries| entries.flatten().any(|e| is_weights(&e) && e.path().is_file()));
    if has_some { Vec::new() } else { vec![one] }
}

/// Files of the modules after the transformer.
fn modules(json: &Value) -> Vec<String> {
    let mut files = Vec::new();
    for module in json.as_array().into_iter().flatten() {
        let (Some(path), Some(kind)) = (module["path"].as_str(), module["type"].as_str()) else { continue };
        if is_unsafe_path(path) {
            continue;
        }
        if kind.ends_with(".Pooling") || kind.ends_with(".Dense") {
            files.push(format!("{path}/config.json"));
        }
        if kind.ends_with(".Dense") {
            files.push(format!("{path}/model.safetensors"));
        }
    }
    files
}

fn read_json(path: &Path) -> Value {
    fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Value::Null)
}

/// All models in a cache.
pub(super) fn models(cache: &Path) -> Vec<CachedModel> {
    let mut models = Vec::new();
    for (name, folder) in entries(cache) {
        let Some(id) = name.strip_prefix("models--").map(|name| name.replace("--", "/")) else { continue };
        let mut named = BTreeSet::new();
        let mut found = Vec::new();
        for (revision, file) in files(&folder.join("refs")) {
            let commit = fs::read_to_string(file).unwrap_or_default().trim().to_owned();
            if is_plain(&commit) {
                named.insert(commit.clone());
                found.push((revision, commit));
            }
        }
        let unnamed = entries(&folder.join("snapshots")).into_iter().map(|(commit, _)| commit);
        found.extend(unnamed.filter(|commit| !named.contains(commit)).map(|commit| (commit.clone(), commit)));
        for (revision, commit) in found {
            let folder = folder.join("snapshots").join(&commit);
            if !folder.is_dir() {
                continue;
            }
            let sizes = files(&folder)
                .into_iter()
                .filter_map(|(_, file)| fs::metadata(file).ok())
                .map(|file| file.len());
            let bytes = sizes.sum();
            let complete =
                missing(&folder, &is_wanted, &Graphs::default()).is_empty() || has_whole_gguf(&folder);
            models.push(CachedModel { id: id.clone(), revision, commit, bytes, folder, complete });
        }
    }
    models.sort_by(|a, b| (&a.id, &a.revision).cmp(&(&b.id, &b.revision)));
    models
}

/// Entries of a folder, by name.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

/// All files below a folder, by relative path. Symlinks to folders are not followed.
pub(crate) fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut files_found = Vec::new();
    for (name, path) in entries(folder) {
        if path.symlink_metadata().is_ok_and(|file| file.is_dir()) {
            files_found
                .extend(files(&path).into_iter().map(|(below, path)| (format!("{name}/{below}"), path)));
        } else {
            files_found.push((name, path));
        }
    }
    files_found
}
