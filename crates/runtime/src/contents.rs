//! SHA-256 of a model's files: computed once, kept by path, size, times and inode, and checked after loading.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use sconce_core::engine::ModelSpec;
use sconce_engines::regular_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::card::CardError;
use crate::event::Event;
use crate::fingerprint::hash;
use crate::home;
use crate::vocabulary;

/// Bytes that are read at a time.
const BLOCK: usize = 1 << 20;
/// Bytes after which progress is told.
const STEP: u64 = 1 << 25;

/// Hashes of files that are known.
#[derive(Clone)]
pub(crate) struct Contents {
    folder: PathBuf,
}

/// A file that was hashed before, and what its metadata said then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    stamp: String,
    sha256: String,
}

/// The hash of a file, and whether it was known.
#[derive(Clone, Debug, PartialEq)]
struct Hashed {
    sha256: String,
    known: bool,
}

/// The files of a model whose hashes were known from before: by file, the hash.
pub(crate) type Unchecked = BTreeMap<PathBuf, String>;

impl Contents {
    pub(crate) fn new(folder: PathBuf) -> Contents {
        Contents { folder }
    }

    fn record(&self, path: &Path) -> PathBuf {
        self.folder.join(format!("{}.json", hash(&path)))
    }

    /// The hash of a file whose metadata are what they were when it was hashed.
    fn known(&self, path: &Path, stamp: &str) -> Option<String> {
        let bytes = fs::read(self.record(path)).ok()?;
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        (record.path == path && record.stamp == stamp).then_some(record.sha256)
    }

    /// Keeps a hash. One that can't be kept is computed again.
    fn keep(&self, path: &Path, stamp: &str, sha256: &str) {
        let record = Record { path: path.to_owned(), stamp: stamp.to_owned(), sha256: sha256.to_owned() };
        let _ = home::replace(&self.record(path), &serde_json::to_vec(&record).unwrap_or_default());
    }

    /// Gives the weights of a model their identity, from the content of its files. The hashes that were known, which
    /// nobody has compared with the content now, are returned.
    pub(crate) fn identify(
        &self,
        subject: &mut ModelSpec,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<Unchecked, CardError> {
        let files = files(subject);
        let hashed = self.hash_all(&files, events)?;
        // What is missing is the engine's to tell.
        let of = |path: &PathBuf| hashed.get(path).map(|hashed| &hashed.sha256);
        let shared = shared_files(subject);
        let shared: Vec<_> = shared.iter().map(of).collect();
        for weights in &mut subject.card.weights {
            let own = subject.files.weights.get(&weights.name).into_iter().flatten();
            weights.identity = hash(&(own.map(of).collect::<Vec<_>>(), &shared));
        }
        let known = hashed.into_iter().filter(|(_, hashed)| hashed.known);
        Ok(known.map(|(path, hashed)| (path, hashed.sha256)).collect())
    }

    /// The hashes of `files`, from what is known or from their content, several files at a time.
    fn hash_all(
        &self,
        files: &[PathBuf],
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<BTreeMap<PathBuf, Hashed>, CardError> {
        let mut all = BTreeMap::new();
        let mut unknown = Vec::new();
        for path in files {
            let stamp = fs::metadata(path).map(|metadata| stamp(&metadata)).map_err(failed(path))?;
            match self.known(&whole(path), &stamp) {
                Some(sha256) => {
                    all.insert(path.clone(), Hashed { sha256, known: true });
                }
                None => unknown.push((path.clone(), stamp)),
            }
        }
        let next = AtomicUsize::new(0);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(unknown.len());
        let (sender, told) = mpsc::channel();
        thread::scope(|scope| -> Result<(), CardError> {
            for _ in 0..threads {
                let (unknown, next, sender) = (&unknown, &next, sender.clone());
                scope.spawn(move || {
                    while let Some((path, _)) = unknown.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let sha256 = sha256(path, &sender);
                        let _ = sender.send(Told::Done(path.clone(), sha256));
                    }
                });
            }
            drop(sender);
            for told in told {
                match told {
                    Told::Read { file, done, total } => events(Event::Hashing { file: &file, done, total }),
                    Told::Done(path, sha256) => {
                        all.insert(
                            path.clone(),
                            Hashed { sha256: sha256.map_err(failed(&path))?, known: false },
                        );
                    }
                }
            }
            Ok(())
        })?;
        for (path, stamp_before) in unknown {
            let unchanged = fs::metadata(&path).is_ok_and(|metadata| stamp(&metadata) == stamp_before);
            if let (Some(hashed), true) = (all.get(&path), unchanged) {
                self.keep(&whole(&path), &stamp_before, &hashed.sha256);
            }
        }
        Ok(all)
    }

    /// Hashes the files of `unchecked` and compares. The first that differs is named and forgotten, so that the next
    /// start hashes it anew.
    pub(crate) fn check(
        &self,
        unchecked: &Unchecked,
        events: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), CardError> {
        for (path, expected) in unchecked {
            let (sender, told) = mpsc::channel();
            let found = thread::scope(|scope| {
                let hashing = scope.spawn(move || sha256(path, &sender));
                for told in told {
                    if let Told::Read { file, done, total } = told {
                        events(Event::Hashing { file: &file, done, total });
                    }
                }
                hashing.join()
            });
            let found = found.map_err(|_| io::Error::other("the thread that hashes it panicked"));
            if found.and_then(|found| found).map_err(failed(path))? != *expected {
                let _ = fs::remove_file(self.record(&whole(path)));
                return Err(CardError::ContentChanged { file: name(path) });
            }
        }
        Ok(())
    }
}

/// What a hashing thread tells.
enum Told {
    Read { file: String, done: u64, total: u64 },
    Done(PathBuf, io::Result<String>),
}

/// The SHA-256 of a file, as `sha256sum` prints it.
fn sha256(path: &Path, told: &Sender<Told>) -> io::Result<String> {
    let mut file = regular_file::open(path)?;
    let total = file.metadata()?.len();
    let tell = |done| {
        let _ = told.send(Told::Read { file: name(path), done, total });
    };
    let (mut hasher, mut block) = (Sha256::new(), vec![0; BLOCK]);
    let (mut done, mut last) = (0, 0);
    tell(0);
    loop {
        let count = match file.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&block[..count]);
        done += count as u64;
        if done - last >= STEP {
            last = done;
            tell(done);
        }
    }
    Ok(format!("{:x}", hasher.finalize()))
}

/// Every file that a model's numbers depend on and that is there.
fn files(subject: &ModelSpec) -> Vec<PathBuf> {
    let weights = subject.files.weights.values().flatten().filter(|path| path.is_file()).cloned();
    let mut files: Vec<PathBuf> = weights.chain(shared_files(subject)).collect();
    files.sort();
    files.dedup();
    files
}

/// The files that all weights of a model share: the modules after pooling and the tokenizer.
fn shared_files(subject: &ModelSpec) -> Vec<PathBuf> {
    let modules = subject.files.modules.values().filter(|path| path.is_file()).cloned();
    modules.chain(vocabulary::files(&subject.files.folder)).collect()
}

/// Whether `file`, as an error names it, belongs to the weights of this name or to all of them.
pub(crate) fn concerns(subject: &ModelSpec, file: &str, weights: &str) -> bool {
    let own = subject.files.weights.get(weights).into_iter().flatten();
    own.chain(&shared_files(subject)).any(|path| name(path) == file)
}

/// A file as messages name it.
fn name(path: &Path) -> String {
    path.display().to_string()
}

/// A path by which a file is known, wherever it is asked from.
fn whole(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CardError {
    let file = name(path);
    move |source| CardError::Io { file, source }
}

/// What changes whenever a file is written, as far as the system tells.
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
