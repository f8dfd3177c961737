//! Downloads one file into the cache: resumable, verified, and renamed into place when complete.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::cache::{Repository, is_complete};
use super::client::{Client, Response};
use super::config::Progress;
use super::error::HubError;
use super::listing;
use super::names::is_blob;
use super::partial_file::PartialFile;

/// Consecutive attempts without progress before the download fails.
const MAX_STALLED_ATTEMPTS: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// A file with a known blob name and size.
struct Target<'a> {
    name: &'a str,
    commit: &'a str,
    blob: String,
    size: u64,
    sha256: Option<&'a str>,
}

/// Downloads a file of a commit into the cache.
pub(super) fn download(
    client: &Client,
    repository: &Repository,
    commit: &str,
    file: &listing::File,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let target = Target::of(client, commit, file)?;
    let blob = repository.blobs().join(&target.blob);
    if !is_complete(&blob, Some(target.size)) {
        let _lock = lock(&blob, target.name, progress)?;
        // Another process may have downloaded it in the meantime.
        if !is_complete(&blob, Some(target.size)) {
            let mut part = PartialFile::open(&sibling(&blob, "part"))?;
            fill(client, &target, &mut part, progress)?;
            part.finish(&blob)?;
        }
    }
    repository.link(commit, target.name, &target.blob)
}

impl<'a> Target<'a> {
    /// Reads from the file's response headers what the list does not report.
    fn of(client: &Client, commit: &'a str, file: &'a listing::File) -> Result<Target<'a>, HubError> {
        let (name, sha256) = (file.name.as_str(), file.sha256.as_deref());
        if let (Some(blob), Some(size)) = (file.blob.clone(), file.size) {
            return Ok(Target { name, commit, blob, size, sha256 });
        }
        let response = client.file(name, commit, "bytes=0-0")?;
        let lacks =
            |what: &str| HubError::Corrupt { file: name.to_owned(), what: format!("it has no {what}") };
        let blob = file.blob.clone().or(response.etag).ok_or_else(|| lacks("etag"))?;
        if !is_blob(&blob) {
            return Err(HubError::Hostile { what: "etag", value: blob });
        }
        let size = file.size.or(response.total).ok_or_else(|| lacks("size"))?;
        Ok(Target { name, commit, blob, size, sha256 })
    }

    fn corrupt(&self, what: String) -> HubError {
        HubError::Corrupt { file: self.name.to_owned(), what }
    }

    fn interrupted(&self, done: u64, source: io::Error) -> HubError {
        HubError::Interrupted { file: self.name.to_owned(), done, total: self.size, source }
    }
}

/// Downloads the rest of `part`.
fn fill(
    client: &Client,
    target: &Target,
    part: &mut PartialFile,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let mut stalled = 0;
    // Resume only if a digest will verify the result.
    if part.length() > target.size || target.sha256.is_none() {
        part.clear()?;
    }
    progress(Progress::File { name: target.name, done: part.length(), total: target.size });
    while part.length() < target.size {
        let before = part.length();
        let Err(error) = resume(client, target, part, progress) else { break };
        stalled = if part.length() > before { 0 } else { stalled + 1 };
        if !error.is_transient() || stalled == MAX_STALLED_ATTEMPTS {
            return Err(error);
        }
        thread::sleep(RETRY_DELAY);
    }
    let wrong = if part.length() > target.size {
        Some(format!("it has more than {} bytes", target.size))
    } else {
        let found = part.sha256();
        let differs = |expected: &&str| !expected.eq_ignore_ascii_case(&found);
        target.sha256.filter(differs).map(|expected| format!("its SHA-256 is {found} and not {expected}"))
    };
    let Some(what) = wrong else { return Ok(()) };
    part.clear()?;
    Err(target.corrupt(what))
}

/// One request for the missing range. On success the file is complete.
fn resume(
    client: &Client,
    target: &Target,
    part: &mut PartialFile,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let Response { status, start, total, body, .. } =
        client.file(target.name, target.commit, &format!("bytes={}-", part.length()))?;
    if let Some(total) = total.filter(|&total| total != target.size) {
        return Err(target.corrupt(format!("it has {total} bytes and not {}", target.size)));
    }
    // A server without range support sends the whole file.
    if status == 200 {
        part.clear()?;
    }
    if start != part.length() || status == 416 {
        return Err(target.corrupt(format!("byte {} was asked for and byte {start} came", part.length())));
    }
    // Reads one byte more, to detect a body that is too long.
    let mut body = body.take(target.size - part.length() + 1);
    let mut buffer = vec![0; 128 << 10];
    while part.length() <= target.size {
        let count = body.read(&mut buffer).map_err(|source| target.interrupted(part.length(), source))?;
        if count == 0 {
            break;
        }
        part.append(&buffer[..count])?;
        progress(Progress::File {
            name: target.name,
            done: part.length().min(target.size),
            total: target.size,
        });
    }
    if part.length() < target.size {
        return Err(target.interrupted(part.length(), io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}

/// Takes the lock that `hf-hub` uses for a blob. `None` if the file system has no locks.
fn lock(blob: &Path, name: &str, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Option<File>, HubError> {
    let path = sibling(blob, "lock");
    let open = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
        File::create(&path)
    };
    let file = open().map_err(|source| HubError::Cache { path: path.clone(), source })?;
    let mut reported = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) => {}
        }
        if !reported {
            progress(Progress::Waiting { name });
            reported = true;
        }
        thread::sleep(RETRY_DELAY);
    }
}

/// The path of a blob with another extension, as `hf-hub` names it.
fn sibling(blob: &Path, extension: &str) -> PathBuf {
    blob.with_extension(extension)
}
