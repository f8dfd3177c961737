//! Unpacks a bundle into a folder, and verifies every file.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};

use super::error::BundleError;
use super::manifest::{
    EVIDENCE, MANIFEST, MAX_MANIFEST_BYTES, MODEL, Manifest, ManifestFile, VERSION, digest, digest_of, hex,
    modified, time,
};
use crate::source::hub::is_unsafe_path;

type Reader = BufReader<File>;

/// Name of the model in the bundle at `path`.
pub fn name(path: &Path) -> Result<String, BundleError> {
    Ok(manifest(path)?.0.name)
}

/// Prompts in the bundle at `path`.
pub(crate) fn prompts(path: &Path) -> Result<BTreeMap<String, String>, BundleError> {
    Ok(manifest(path)?.0.prompts)
}

/// Unpacks the bundle at `path` to `cache`, under the checksum of its manifest, and returns the model folder. Files that
/// are already there are verified and reused.
pub(crate) fn unpack(path: &Path, cache: &Path) -> Result<PathBuf, BundleError> {
    let (manifest, sum) = manifest(path)?;
    let folder = cache.join(&sum);
    if is_complete(&folder, &manifest) {
        restore_times(&folder, &manifest);
        return Ok(folder.join(MODEL));
    }
    let draft = cache.join(format!(".{sum}.{}", std::process::id()));
    let _ = fs::remove_dir_all(&draft);
    let unpacked = extract(path, &manifest, &draft).and_then(|()| {
        // Another process may have unpacked it; replace an incomplete folder.
        if !is_complete(&folder, &manifest) {
            let _ = fs::remove_dir_all(&folder);
            let moved = fs::rename(&draft, &folder);
            moved.map_err(|source| BundleError::Unwritten { path: folder.clone(), source })?;
        }
        restore_times(&folder, &manifest);
        Ok(folder.join(MODEL))
    });
    let _ = fs::remove_dir_all(&draft);
    unpacked
}

/// The manifest of a bundle, and its checksum.
fn manifest(path: &Path) -> Result<(Manifest, String), BundleError> {
    let mut archive = open(path)?;
    let mut entries = entries(path, &mut archive)?;
    read_manifest(path, entries.next())
}

fn open(path: &Path) -> Result<Archive<Reader>, BundleError> {
    let file =
        File::open(path).map_err(|source| BundleError::Unreadable { path: path.to_owned(), source })?;
    Ok(Archive::new(BufReader::new(file)))
}

type Next<'a> = io::Result<Entry<'a, Reader>>;

fn entries<'a>(
    path: &Path,
    archive: &'a mut Archive<Reader>,
) -> Result<impl Iterator<Item = Next<'a>>, BundleError> {
    archive.entries().map_err(|source| BundleError::Unreadable { path: path.to_owned(), source })
}

fn read_manifest(path: &Path, first: Option<Next<'_>>) -> Result<(Manifest, String), BundleError> {
    let not_a_bundle = || BundleError::NotABundle { path: path.to_owned() };
    let entry = first.and_then(Result::ok).ok_or_else(not_a_bundle)?;
    if *entry.path_bytes() != *MANIFEST.as_bytes() || entry.header().entry_type() != EntryType::Regular {
        return Err(not_a_bundle());
    }
    let changed = |what: String| changed(path, MANIFEST, what);
    let mut text = Vec::new();
    let read = entry.take(MAX_MANIFEST_BYTES).read_to_end(&mut text);
    read.map_err(|error| changed(format!("can't be read: {error}")))?;
    let version = serde_json::from_slice::<serde_json::Value>(&text).ok();
    let version = version.and_then(|json| u32::try_from(json["sconce_bundle"].as_u64()?).ok());
    match version {
        None => return Err(changed("is not a list of files".to_owned())),
        Some(VERSION) => {}
        Some(version) => return Err(BundleError::Version { path: path.to_owned(), version }),
    }
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| changed(format!("can't be read: {error}")))?;
    let mut seen = HashSet::new();
    for file in &manifest.files {
        let is_inside = [MODEL, EVIDENCE]
            .iter()
            .any(|&folder| file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
        if is_unsafe_path(&file.path) || !is_inside {
            return Err(changed(format!("names a file that leads elsewhere: `{}`", file.path)));
        }
        if !seen.insert(file.path.to_lowercase()) {
            return Err(changed(format!("names a file twice: `{}`", file.path)));
        }
    }
    // A tar is not compressed: the files can't be larger than the archive.
    let all = manifest.files.iter().try_fold(0_u64, |all, file| all.checked_add(file.bytes));
    let length = fs::metadata(path).map_or(0, |data| data.len());
    if all.is_none_or(|all| all > length) {
        return Err(changed("lists more bytes than the bundle has: it was truncated".to_owned()));
    }
    Ok((manifest, hex(&Sha256::digest(&text))))
}

fn changed(path: &Path, file: &str, what: impl Into<String>) -> BundleError {
    BundleError::Changed { path: path.to_owned(), file: file.to_owned(), what: what.into() }
}

/// Whether `folder` has every file of the manifest with its checksum.
fn is_complete(folder: &Path, manifest: &Manifest) -> bool {
    manifest.files.iter().all(|file| {
        let path = folder.join(&file.path);
        let is_file =
            fs::symlink_metadata(&path).is_ok_and(|data| data.is_file() && data.len() == file.bytes);
        is_file && digest_of(&path).is_ok_and(|(_, sha256)| sha256 == file.sha256)
    })
}

/// Restores modification times. If that fails, vectors get another numerics class.
fn restore_times(folder: &Path, manifest: &Manifest) {
    for file in &manifest.files {
        let path = folder.join(&file.path);
        if modified(&path).is_ok_and(|now| now != file.modified) {
            let opened = File::options().write(true).open(&path);
            let _ = opened.and_then(|opened| opened.set_modified(time(file.modified)));
        }
    }
}

/// Extracts the files of the bundle into `folder`.
fn extract(path: &Path, manifest: &Manifest, folder: &Path) -> Result<(), BundleError> {
    let mut archive = open(path)?;
    let mut entries = entries(path, &mut archive)?.skip(1);
    for file in &manifest.files {
        let entry = match entries.next() {
            None => return Err(changed(path, &file.path, "is missing")),
            Some(Err(error)) => return Err(changed(path, &file.path, format!("can't be read: {error}"))),
            Some(Ok(entry)) => entry,
        };
        check(path, file, &entry)?;
        write_file(path, file, entry, folder)?;
    }
    match entries.next() {
        None => Ok(()),
        Some(Err(error)) => Err(changed(path, "its end", format!("can't be read: {error}"))),
        Some(Ok(entry)) => Err(changed(path, &name_of(&entry), "is not in the manifest")),
    }
}

fn name_of(entry: &Entry<'_, Reader>) -> String {
    String::from_utf8_lossy(&entry.path_bytes()).into_owned()
}

/// Checks that an entry is the regular file that is next in the manifest.
fn check(path: &Path, file: &ManifestFile, entry: &Entry<'_, Reader>) -> Result<(), BundleError> {
    let name = name_of(entry);
    if name != file.path {
        return Err(changed(path, &name, format!("is in the place of `{}`", file.path)));
    }
    if entry.header().entry_type() != EntryType::Regular {
        return Err(changed(path, &name, "is not a plain file"));
    }
    if entry.size() != file.bytes {
        return Err(changed(path, &name, format!("has {} bytes, not {}", entry.size(), file.bytes)));
    }
    Ok(())
}

/// Writes a file to its path in the manifest, which was checked before.
fn write_file(
    path: &Path,
    file: &ManifestFile,
    mut entry: Entry<'_, Reader>,
    folder: &Path,
) -> Result<(), BundleError> {
    let to = folder.join(&file.path);
    let unwritten = |source| BundleError::Unwritten { path: to.clone(), source };
    fs::create_dir_all(to.parent().unwrap_or(folder)).map_err(unwritten)?;
    let mut output = File::create_new(&to).map_err(unwritten)?;
    let mut write_error = None;
    let written = digest(&mut entry, &mut |bytes| {
        output.write_all(bytes).inspect_err(|error| write_error = Some(io::Error::from(error.kind())))
    });
    if let Some(source) = write_error {
        return Err(unwritten(source));
    }
    let (bytes, sha256) =
        written.map_err(|error| changed(path, &file.path, format!("can't be read: {error}")))?;
    if bytes != file.bytes {
        return Err(changed(path, &file.path, format!("ends after {bytes} of {} bytes", file.bytes)));
    }
    if sha256 != file.sha256 {
        return Err(changed(path, &file.path, format!("has the SHA-256 {sha256}, not {}", file.sha256)));
    }
    output.sync_all().map_err(unwritten)
}
