//! One file, from the hub into the cache: goes on where it stopped, and becomes a file of the cache only when it
//! is whole.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::cache::{Repository, is_whole};
use super::client::{Client, Reply};
use super::error::HubError;
use super::names::is_blob;
use super::part::Part;
use super::{Progress, listing};

/// Attempts in a row that bring no byte, before it is given up.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// A file whose content has a name and a size.
struct Target<'a> {
    name: &'a str,
    commit: &'a str,
    blob: String,
    size: u64,
    sha256: Option<&'a str>,
}

/// Brings a file of a commit into the cache.
pub(super) fn download(
    client: &Client,
    repository: &Repository,
    commit: &str,
    file: &listing::File,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let target = Target::of(client, commit, file)?;
    let blob = repository.blobs().join(&target.blob);
    if !is_whole(&blob, Some(target.size)) {
        let _lock = lock(&blob, target.name, progress)?;
        // Another process may have brought it while we waited.
        if !is_whole(&blob, Some(target.size)) {
            let mut part = Part::open(&beside(&blob, "part"))?;
            fill(client, &target, &mut part, progress)?;
            part.become_whole(&blob)?;
        }
    }
    repository.link(commit, target.name, &target.blob)
}

impl<'a> Target<'a> {
    /// What the list does not say of a file, the file's own headers do.
    fn of(client: &Client, commit: &'a str, file: &'a listing::File) -> Result<Target<'a>, HubError> {
        let (name, sha256) = (file.name.as_str(), file.sha256.as_deref());
        if let (Some(blob), Some(size)) = (file.blob.clone(), file.size) {
            return Ok(Target { name, commit, blob, size, sha256 });
        }
        let reply = client.file(name, commit, "bytes=0-0")?;
        let lacks =
            |what: &str| HubError::Corrupt { file: name.to_owned(), what: format!("it has no {what}") };
        let blob = file.blob.clone().or(reply.etag).ok_or_else(|| lacks("etag"))?;
        if !is_blob(&blob) {
            return Err(HubError::Hostile { what: "etag", value: blob });
        }
        let size = file.size.or(reply.total).ok_or_else(|| lacks("size"))?;
        Ok(Target { name, commit, blob, size, sha256 })
    }

    fn corrupt(&self, what: String) -> HubError {
        HubError::Corrupt { file: self.name.to_owned(), what }
    }

    fn interrupted(&self, done: u64, source: io::Error) -> HubError {
        HubError::Interrupted { file: self.name.to_owned(), done, total: self.size, source }
    }
}

/// Fills the part until it is the whole file.
fn fill(
    client: &Client,
    target: &Target,
    part: &mut Part,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let mut fruitless = 0;
    // What an earlier run left is taken up only where the digest will tell whether it was right.
    if part.length() > target.size || target.sha256.is_none() {
        part.clear()?;
    }
    progress(Progress::File { name: target.name, done: part.length(), total: target.size });
    while part.length() < target.size {
        let before = part.length();
        let Err(error) = go_on(client, target, part, progress) else { break };
        fruitless = if part.length() > before { 0 } else { fruitless + 1 };
        if !error.may_pass() || fruitless == ATTEMPTS {
            return Err(error);
        }
        thread::sleep(PAUSE);
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

/// One request for what the part lacks. When it returns without an error, nothing is lacking.
fn go_on(
    client: &Client,
    target: &Target,
    part: &mut Part,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), HubError> {
    let Reply { status, start, total, body, .. } =
        client.file(target.name, target.commit, &format!("bytes={}-", part.length()))?;
    if let Some(total) = total.filter(|&total| total != target.size) {
        return Err(target.corrupt(format!("it has {total} bytes and not {}", target.size)));
    }
    // A server that does not know ranges starts from the beginning.
    if status == 200 {
        part.clear()?;
    }
    if start != part.length() || status == 416 {
        return Err(target.corrupt(format!("byte {} was asked for and byte {start} came", part.length())));
    }
    // One byte more than is lacking, to see a body that is too long.
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

/// Waits until no other process is at this content. The lock is the one that `hf-hub` takes, so its users are
/// waited for as well; a file system without locks goes without.
fn lock(blob: &Path, name: &str, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Option<File>, HubError> {
    let path = beside(blob, "lock");
    let open = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
        File::create(&path)
    };
    let file = open().map_err(|source| HubError::Cache { path: path.clone(), source })?;
    let mut is_told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::Error(_)) => return Ok(None),
            Err(TryLockError::WouldBlock) => {}
        }
        if !is_told {
            progress(Progress::Waiting { name });
            is_told = true;
        }
        thread::sleep(PAUSE);
    }
}

/// The file beside a content, by the names that `hf-hub` gives them.
fn beside(blob: &Path, extension: &str) -> PathBuf {
    blob.with_extension(extension)
}
