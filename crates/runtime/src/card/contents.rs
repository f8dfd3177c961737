//! SHA-256 of a model's files: computed once, recorded by path, size, times and inode, and verified after loading.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use sconce_core::card::Format;
use sconce_core::engine::ModelSpec;
use sconce_engines::regular_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::CardError;
use crate::digest::hash;
use crate::event::Event;
use crate::home;
use crate::tokenize;

/// Read buffer size in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes between progress events.
const PROGRESS_BYTES: u64 = 1 << 25;

/// Recorded hashes of files.
#[derive(Clone)]
pub(crate) struct Contents {
    folder: PathBuf,
}

/// A recorded hash, valid while the file's metadata is unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    stamp: String,
    sha256: String,
}

/// The hash of a file.
#[derive(Clone, Debug, PartialEq)]
struct Hashed {
    sha256: String,
    /// Whether it comes from a record.
    recorded: bool,
}

/// Files whose recorded hash was not yet compared with their content.
pub(crate) type Unverified = BTreeMap<PathBuf, String>;

impl Contents {
    pub(crate) fn new(folder: PathBuf) -> Contents {
        Contents { folder }
    }

    fn record_path(&self, path: &Path) -> PathBuf {
        self.folder.join(format!("{}.json", hash(&path)))
    }

    /// The recorded hash of a file, if its metadata is unchanged.
    fn recorded(&self, path: &Path, stamp: &str) -> Option<String> {
        let bytes = fs::read(self.record_path(path)).ok()?;
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        (record.path == path && record.stamp == stamp).then_some(record.sha256)
    }

    /// Records a hash. On failure it is computed again next time.
    fn record_hash(&self, path: &Path, stamp: &str, sha256: &str) {
        let record = Record { path: path.to_owned(), stamp: stamp.to_owned(), sha256: sha256.to_owned() };
        let _ =
            home::write_atomically(&self.record_path(path), &serde_json::to_vec(&record).unwrap_or_default());
    }

    /// Sets the identity of a model's weights from the content of its files. Returns the recorded hashes that were used
    /// without reading the files.
    pub(crate) fn identify(
        &self,
        spec: &mut ModelSpec,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Unverified, CardError> {
        let files = files(spec);
        let hashed = self.hash_all(&files, events)?;
        // The engine reports missing files.
        let of = |path: &PathBuf| hashed.get(path).map(|hashed| &hashed.sha256);
        let shared = shared_files(spec);
        let shared: Vec<_> = shared.iter().map(of).collect();
        for weights in &mut spec.card.weights {
            let own = spec.files.weights.get(&weights.name).into_iter().flatten();
            weights.identity = hash(&(own.map(of).collect::<Vec<_>>(), &shared));
        }
        let known = hashed.into_iter().filter(|(_, hashed)| hashed.recorded);
        Ok(known.map(|(path, hashed)| (path, hashed.sha256)).collect())
    }

    /// Sets the identity of a model's weights if the hashes of all its files are recorded. Reads no file.
    pub(crate) fn identify_recorded(&self, spec: &mut ModelSpec) {
        let is_recorded = |path: &PathBuf| {
            let metadata = fs::metadata(path);
            metadata.is_ok_and(|metadata| self.recorded(&absolute(path), &stamp(&metadata)).is_some())
        };
        if files(spec).iter().all(is_recorded) {
            let _ = self.identify(spec, &mut |_| {});
        }
    }

    /// The file that has changed since weights were identified, if their content has. New metadata alone is no change.
    pub(crate) fn changed(&self, spec: &ModelSpec, stamps: &Stamps, weights: &str) -> Option<String> {
        let file = stamps.changed(spec, weights)?;
        let mut now = spec.clone();
        let identity = |spec: &ModelSpec| spec.card.weights_named(weights).map(|own| own.identity.clone());
        let is_same = self.identify(&mut now, &mut |_| {}).is_ok() && identity(&now) == identity(spec);
        (!is_same).then_some(file)
    }

    /// Hashes of `files`, from records or from their content, several files in parallel.
    fn hash_all(
        &self,
        files: &[PathBuf],
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<BTreeMap<PathBuf, Hashed>, CardError> {
        let mut all = BTreeMap::new();
        let mut unknown = Vec::new();
        for path in files {
            let stamp = fs::metadata(path).map(|metadata| stamp(&metadata)).map_err(failed(path))?;
            match self.recorded(&absolute(path), &stamp) {
                Some(sha256) => {
                    all.insert(path.clone(), Hashed { sha256, recorded: true });
                }
                None => unknown.push((path.clone(), stamp)),
            }
        }
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(unknown.len());
        let (sender, events_of_threads) = mpsc::channel();
        thread::scope(|scope| -> Result<(), CardError> {
            for _ in 0..threads {
                let (unknown, next, sender) = (&unknown, &next, sender.clone());
                scope.spawn(move || {
                    while let Some((path, _)) = unknown.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let sha256 = sha256(path, &sender);
                        let _ = sender.send(HashEvent::Done(path.clone(), sha256));
                    }
                });
            }
            drop(sender);
            for event in events_of_threads {
                match event {
                    HashEvent::Read { file, done, total } => {
                        events(Event::Hashing { file: &file, done, total });
                    }
                    HashEvent::Done(path, sha256) => {
                        all.insert(
                            path.clone(),
                            Hashed { sha256: sha256.map_err(failed(&path))?, recorded: false },
                        );
                    }
                }
            }
            Ok(())
        })?;
        for (path, stamp_before) in unknown {
            let unchanged = fs::metadata(&path).is_ok_and(|metadata| stamp(&metadata) == stamp_before);
            if let (Some(hashed), true) = (all.get(&path), unchanged) {
                self.record_hash(&absolute(&path), &stamp_before, &hashed.sha256);
            }
        }
        Ok(all)
    }

    /// Hashes the files and compares. Removes the record of the first that differs, and returns it as an error.
    pub(crate) fn check(
        &self,
        unverified: &Unverified,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), CardError> {
        for (path, expected) in unverified {
            let (sender, events_of_threads) = mpsc::channel();
            let found = thread::scope(|scope| {
                let hashing = scope.spawn(move || sha256(path, &sender));
                for event in events_of_threads {
                    if let HashEvent::Read { file, done, total } = event {
                        events(Event::Hashing { file: &file, done, total });
                    }
                }
                hashing.join()
            });
            let found = found.map_err(|_| io::Error::other("the thread that hashes it panicked"));
            if found.and_then(|found| found).map_err(failed(path))? != *expected {
                let _ = fs::remove_file(self.record_path(&absolute(path)));
                return Err(CardError::ContentChanged { file: name(path) });
            }
        }
        Ok(())
    }
}

/// The metadata of a model's files when their content was hashed.
#[derive(Clone, Debug)]
pub(crate) struct Stamps(BTreeMap<PathBuf, String>);

impl Stamps {
    pub(crate) fn of(spec: &ModelSpec) -> Stamps {
        let stamped = |path: PathBuf| Some((path.clone(), stamp(&fs::metadata(path).ok()?)));
        Stamps(files(spec).into_iter().filter_map(stamped).collect())
    }

    /// The first file of some weights whose metadata is another one now.
    fn changed(&self, spec: &ModelSpec, weights: &str) -> Option<String> {
        let is_same =
            |path: &PathBuf, before: &String| fs::metadata(path).is_ok_and(|now| stamp(&now) == *before);
        let changed = self.0.iter().filter(|(path, before)| !is_same(path, before));
        changed.map(|(path, _)| name(path)).find(|file| concerns(spec, file, weights))
    }
}

/// Message of a hashing thread.
enum HashEvent {
    Read { file: String, done: u64, total: u64 },
    Done(PathBuf, io::Result<String>),
}

/// SHA-256 of a file in hexadecimal.
fn sha256(path: &Path, events: &Sender<HashEvent>) -> io::Result<String> {
    let mut file = regular_file::open(path)?;
    let total = file.metadata()?.len();
    let report = |done| {
        let _ = events.send(HashEvent::Read { file: name(path), done, total });
    };
    let (mut hasher, mut block) = (Sha256::new(), vec![0; BUFFER_BYTES]);
    let (mut done, mut last) = (0, 0);
    report(0);
    loop {
        let count = match file.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&block[..count]);
        done += count as u64;
        if done - last >= PROGRESS_BYTES {
            last = done;
            report(done);
        }
    }
    Ok(format!("{:x}", hasher.finalize()))
}

/// Every existing file that affects the model's output.
fn files(spec: &ModelSpec) -> Vec<PathBuf> {
    let weights = spec.files.weights.values().flatten().filter(|path| path.is_file()).cloned();
    let mut files: Vec<PathBuf> = weights.chain(shared_files(spec)).collect();
    files.sort();
    files.dedup();
    files
}

/// Files shared by all weights of a model: the modules after pooling and the tokenizer.
fn shared_files(spec: &ModelSpec) -> Vec<PathBuf> {
    let modules = spec.files.modules.values().filter(|path| path.is_file()).cloned();
    // A GGUF file has its own tokenizer.
    let is_gguf = spec.card.weights.iter().any(|weights| weights.format == Format::Gguf);
    let tokenizer = if is_gguf { Vec::new() } else { tokenize::files(&spec.files.folder) };
    modules.chain(tokenizer).collect()
}

/// Whether `file` is part of the weights named `weights`, or shared by all weights.
pub(crate) fn concerns(spec: &ModelSpec, file: &str, weights: &str) -> bool {
    let own = spec.files.weights.get(weights).into_iter().flatten();
    own.chain(&shared_files(spec)).any(|path| name(path) == file)
}

/// A path as in messages.
fn name(path: &Path) -> String {
    path.display().to_string()
}

/// The absolute path of a file.
fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CardError {
    let file = name(path);
    move |source| CardError::Io { file, source }
}

/// Metadata that changes when a file is written.
#[cfg(unix)]
fn stamp(metadata: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    let (modified, changed) =
        ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()));
    format!("{} {modified:?} {changed:?} {} {}", metadata.len(), metadata.ino(), metadata.dev())
}

#[cfg(not(unix))]
fn stamp(metadata: &Metadata) -> String {
    format!("{} {:?}", metadata.len(), metadata.modified().ok())
}
