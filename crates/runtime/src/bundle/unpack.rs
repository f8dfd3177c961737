//! From one file to a folder, every byte of it checked.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};

use super::{
    BundleError, EVIDENCE, LIST, LONGEST_LIST, List, Listed, MODEL, VERSION, digest, digest_of, digits,
    modified, time,
};
use crate::hub::is_hostile;

type Reader = BufReader<File>;

/// The folder with the model of the bundle at `path`, under `cache` by the checksum of its list. What lies there
/// already is checked again and taken where it is whole.
pub(crate) fn unpack(path: &Path, cache: &Path) -> Result<PathBuf, BundleError> {
    let (list, sum) = list(path)?;
    let folder = cache.join(&sum);
    if is_whole(&folder, &list) {
        date(&folder, &list);
        return Ok(folder.join(MODEL));
    }
    let draft = cache.join(format!(".{sum}.{}", std::process::id()));
    let _ = fs::remove_dir_all(&draft);
    let unpacked = fill(path, &list, &draft).and_then(|()| {
        // Another process may have been faster; what is not whole gives way.
        if !is_whole(&folder, &list) {
            let _ = fs::remove_dir_all(&folder);
            let moved = fs::rename(&draft, &folder);
            moved.map_err(|source| BundleError::Unwritten { path: folder.clone(), source })?;
        }
        date(&folder, &list);
        Ok(folder.join(MODEL))
    });
    let _ = fs::remove_dir_all(&draft);
    unpacked
}

/// The list of a bundle, and its checksum.
pub(super) fn list(path: &Path) -> Result<(List, String), BundleError> {
    let mut archive = open(path)?;
    let mut entries = entries(path, &mut archive)?;
    read_list(path, entries.next())
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

fn read_list(path: &Path, first: Option<Next<'_>>) -> Result<(List, String), BundleError> {
    let not_a_bundle = || BundleError::NotABundle { path: path.to_owned() };
    let entry = first.and_then(Result::ok).ok_or_else(not_a_bundle)?;
    if *entry.path_bytes() != *LIST.as_bytes() || entry.header().entry_type() != EntryType::Regular {
        return Err(not_a_bundle());
    }
    let changed = |what: String| changed(path, LIST, what);
    let mut text = Vec::new();
    let read = entry.take(LONGEST_LIST).read_to_end(&mut text);
    read.map_err(|error| changed(format!("can't be read: {error}")))?;
    let version = serde_json::from_slice::<serde_json::Value>(&text).ok();
    let version = version.and_then(|list| u32::try_from(list["sconce_bundle"].as_u64()?).ok());
    match version {
        None => return Err(changed("is not a list of files".to_owned())),
        Some(VERSION) => {}
        Some(version) => return Err(BundleError::Version { path: path.to_owned(), version }),
    }
    let list: List =
        serde_json::from_slice(&text).map_err(|error| changed(format!("can't be read: {error}")))?;
    let mut seen = HashSet::new();
    for file in &list.files {
        let is_inside = [MODEL, EVIDENCE]
            .iter()
            .any(|&folder| file.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')));
        if is_hostile(&file.path) || !is_inside {
            return Err(changed(format!("names a file that leads elsewhere: `{}`", file.path)));
        }
        if !seen.insert(file.path.to_lowercase()) {
            return Err(changed(format!("names a file twice: `{}`", file.path)));
        }
    }
    // Nothing is packed tighter than it is: a list that promises more than the file holds is not believed.
    let all = list.files.iter().try_fold(0_u64, |all, file| all.checked_add(file.bytes));
    let length = fs::metadata(path).map_or(0, |data| data.len());
    if all.is_none_or(|all| all > length) {
        return Err(changed("promises more than there is: the bundle was cut off".to_owned()));
    }
    Ok((list, digits(&Sha256::digest(&text))))
}

fn changed(path: &Path, file: &str, what: impl Into<String>) -> BundleError {
    BundleError::Changed { path: path.to_owned(), file: file.to_owned(), what: what.into() }
}

/// Whether every file of the list lies in `folder` as it should.
fn is_whole(folder: &Path, list: &List) -> bool {
    list.files.iter().all(|file| {
        let path = folder.join(&file.path);
        let is_file =
            fs::symlink_metadata(&path).is_ok_and(|data| data.is_file() && data.len() == file.bytes);
        is_file && digest_of(&path).is_ok_and(|(_, sha256)| sha256 == file.sha256)
    })
}

/// Gives files the times that they had; where that can't be done, their vectors are of another class.
fn date(folder: &Path, list: &List) {
    for file in &list.files {
        let path = folder.join(&file.path);
        if modified(&path).is_ok_and(|now| now != file.modified) {
            let opened = File::options().write(true).open(&path);
            let _ = opened.and_then(|opened| opened.set_modified(time(file.modified)));
        }
    }
}

/// Puts the files of the bundle into `folder`.
fn fill(path: &Path, list: &List, folder: &Path) -> Result<(), BundleError> {
    let mut archive = open(path)?;
    let mut entries = entries(path, &mut archive)?.skip(1);
    for file in &list.files {
        let entry = match entries.next() {
            None => return Err(changed(path, &file.path, "is missing")),
            Some(Err(error)) => return Err(changed(path, &file.path, format!("can't be read: {error}"))),
            Some(Ok(entry)) => entry,
        };
        check(path, file, &entry)?;
        put(path, file, entry, folder)?;
    }
    match entries.next() {
        None => Ok(()),
        Some(Err(error)) => Err(changed(path, "its end", format!("can't be read: {error}"))),
        Some(Ok(entry)) => Err(changed(path, &name_of(&entry), "is not in its list")),
    }
}

fn name_of(entry: &Entry<'_, Reader>) -> String {
    String::from_utf8_lossy(&entry.path_bytes()).into_owned()
}

/// Whether an entry is the plain file that is next in the list. Links, folders and devices never are.
fn check(path: &Path, file: &Listed, entry: &Entry<'_, Reader>) -> Result<(), BundleError> {
    let name = name_of(entry);
    if name != file.path {
        return Err(changed(path, &name, format!("stands where its list has `{}`", file.path)));
    }
    if entry.header().entry_type() != EntryType::Regular {
        return Err(changed(path, &name, "is not a plain file"));
    }
    if entry.size() != file.bytes {
        return Err(changed(path, &name, format!("has {} bytes, not {}", entry.size(), file.bytes)));
    }
    Ok(())
}

/// Writes a file under its name in the list, which is known to lie inside.
fn put(path: &Path, file: &Listed, mut entry: Entry<'_, Reader>, folder: &Path) -> Result<(), BundleError> {
    let to = folder.join(&file.path);
    let unwritten = |source| BundleError::Unwritten { path: to.clone(), source };
    fs::create_dir_all(to.parent().unwrap_or(folder)).map_err(unwritten)?;
    let mut output = File::create_new(&to).map_err(unwritten)?;
    let mut trouble = None;
    let written = digest(&mut entry, &mut |bytes| {
        output.write_all(bytes).inspect_err(|error| trouble = Some(io::Error::from(error.kind())))
    });
    if let Some(source) = trouble {
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
