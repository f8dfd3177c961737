//! Evidence on disk: one JSON file per finding, named by the hash of its key.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::fingerprint::Fingerprint;
use crate::digest::hash;
use crate::home;

/// Initial backoff after a transient failure. It doubles with each attempt.
const INITIAL_BACKOFF: Duration = Duration::from_mins(1);
/// Maximum backoff.
const MAX_BACKOFF: Duration = Duration::from_hours(24);

/// Folder of findings.
pub(crate) struct Store {
    folder: PathBuf,
    /// Transient failures of this process.
    failed: Mutex<HashSet<PathBuf>>,
    /// The first error of writing a finding.
    error: OnceLock<String>,
}

/// Key of a finding.
#[derive(Serialize)]
pub(crate) struct Key<'a> {
    /// `twin`, `speed` or `canary`.
    pub(crate) kind: &'a str,
    pub(crate) fingerprint: &'a Fingerprint,
    /// Hash of the model facts that this kind depends on.
    pub(crate) subject: &'a str,
    pub(crate) placement: &'a Placement,
}

#[derive(Deserialize)]
struct Record<T> {
    found: Result<T, Obstacle>,
    /// Number of attempts.
    #[serde(default)]
    attempts: u32,
    /// Unix time of the last attempt.
    #[serde(default)]
    at: u64,
}

/// Result of a lookup.
#[derive(Debug, PartialEq)]
pub(crate) enum Lookup<T> {
    /// No finding.
    Missing,
    /// A valid finding.
    Found(Result<T, Obstacle>),
    /// A transient failure whose backoff is over, and its number of attempts.
    Retry(Obstacle, u32),
}

impl Store {
    pub(crate) fn new(folder: PathBuf) -> Store {
        Store { folder, failed: Mutex::default(), error: OnceLock::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &Key<'_>) -> PathBuf {
        self.folder.join(format!("{}-{}.json", key.kind, hash(key)))
    }

    fn failed(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up `key`. An unreadable file counts as missing.
    pub(crate) fn get<T: DeserializeOwned>(&self, key: &Key<'_>) -> Lookup<T> {
        let path = self.path(key);
        let record = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Record<T>>(&bytes).ok());
        match record {
            None => Lookup::Missing,
            Some(Record { found: Err(obstacle), attempts, at })
                if obstacle.is_transient() && is_due(attempts, at, now(), self.failed().contains(&path)) =>
            {
                Lookup::Retry(obstacle, attempts)
            }
            Some(record) => Lookup::Found(record.found),
        }
    }

    /// Stores a finding with its number of attempts. On I/O errors the evidence is gathered again next time.
    pub(crate) fn put<T: Serialize>(&self, key: &Key<'_>, found: &Result<T, Obstacle>, attempts: u32) {
        let path = self.path(key);
        if found.as_ref().is_err_and(Obstacle::is_transient) {
            self.failed().insert(path.clone());
        }
        let record = serde_json::json!({ "about": key, "found": found, "attempts": attempts, "at": now() });
        let bytes = serde_json::to_vec_pretty(&record).unwrap_or_default();
        if let Err(error) = home::write_atomically(&path, &bytes)
            && self.error.set(error.to_string()).is_ok()
        {
            tracing::warn!("evidence can't be stored in `{}`: {error}", self.folder.display());
        }
    }

    /// Why findings could not be stored.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.get().map(String::as_str)
    }

    /// Number of stored findings.
    pub(crate) fn count(&self) -> usize {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json")).count()
    }

    /// Deletes all findings.
    pub(crate) fn clear(&self) {
        self.failed().clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Unix time in seconds.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Whether a transient failure may be retried. A new process retries the first failure at once, and later ones after a
/// backoff. The process that saw the failure waits before the second attempt.
fn is_due(attempts: u32, at: u64, now: u64, same_process: bool) -> bool {
    let waits = attempts.saturating_sub(u32::from(!same_process));
    let backoff = match waits.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => INITIAL_BACKOFF.saturating_mul(2u32.saturating_pow(doublings)).min(MAX_BACKOFF),
    };
    // The clock was set back: the elapsed time is unknown.
    at > now || now - at >= backoff.as_secs()
}

#[cfg(test)]
mod tests {
    use sconce_core::device::Device;
    use sconce_core::hardware::Hardware;
    use sconce_core::placement::{Dtype, EngineId};

    use super::*;

    fn killed() -> Result<u32, Obstacle> {
        Err(Obstacle::Killed { case: "a case".to_owned(), cause: "signal: 9".to_owned() })
    }

    fn placement(weights: &str) -> Placement {
        Placement {
            engine: EngineId::Candle,
            device: Device::Cpu,
            weights: weights.to_owned(),
            dtype: Dtype::F32,
        }
    }

    fn fingerprint(build: &str) -> Fingerprint {
        Fingerprint::new(build.to_owned(), &Hardware::default(), Device::Cpu)
    }

    #[test]
    fn every_part_of_a_key_tells_findings_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path().join("evidence"));
        let (one, two) = (fingerprint("one"), fingerprint("two"));
        let (here, there) = (placement("here"), placement("there"));
        let key = Key { kind: "twin", fingerprint: &one, subject: "a", placement: &here };
        store.put(&key, &Ok(7), 1);
        assert_eq!(store.get::<u32>(&key), Lookup::Found(Ok(7)));
        for other in [
            Key { kind: "speed", ..key },
            Key { fingerprint: &two, ..key },
            Key { subject: "b", ..key },
            Key { placement: &there, ..key },
        ] {
            assert_eq!(store.get::<u32>(&other), Lookup::Missing, "{}", serde_json::json!(other));
        }
        assert_eq!(store.count(), 1);
        store.clear();
        assert_eq!((store.count(), store.get::<u32>(&key)), (0, Lookup::Missing));
    }

    #[test]
    fn a_transient_failure_is_tried_at_the_next_start_and_not_again_in_this_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let start = || Store::new(folder.path().join("evidence"));
        let (fingerprint, placement) = (fingerprint("one"), placement("here"));
        let key = Key { kind: "twin", fingerprint: &fingerprint, subject: "a", placement: &placement };
        let first = start();
        first.put(&key, &killed(), 1);
        assert_eq!(first.get::<u32>(&key), Lookup::Found(killed()));
        let second = start();
        assert_eq!(second.get::<u32>(&key), Lookup::Retry(killed().expect_err("an obstacle"), 1));
        second.put(&key, &killed(), 2);
        assert_eq!(start().get::<u32>(&key), Lookup::Found(killed()), "the backoff has begun");
        second.put(&key, &Ok(7), 3);
        assert_eq!(start().get::<u32>(&key), Lookup::Found(Ok(7)));
        let crashed = Obstacle::Crashed { case: "a case".to_owned(), cause: "signal: 6".to_owned() };
        second.put::<u32>(&key, &Err(crashed.clone()), 4);
        assert_eq!(start().get::<u32>(&key), Lookup::Found(Err(crashed)), "a crash is final");
    }

    #[test]
    fn the_backoff_doubles_up_to_a_day() {
        let minutes = |attempts, here| {
            let due = |minutes: &u64| is_due(attempts, 1000, 1000 + 60 * minutes, here);
            (0..3000).find(due)
        };
        assert_eq!([1, 2, 3, 4, 5].map(|attempts| minutes(attempts, false)), [0, 1, 2, 4, 8].map(Some));
        assert_eq!([1, 2, 3, 4, 5].map(|attempts| minutes(attempts, true)), [1, 2, 4, 8, 16].map(Some));
        assert_eq!([40, u32::MAX].map(|attempts| minutes(attempts, false)), [1440, 1440].map(Some));
        assert!(is_due(0, 0, 0, false), "a record of an older version");
        assert!(is_due(9, 2000, 1000, true), "the clock was set back");
    }
}
