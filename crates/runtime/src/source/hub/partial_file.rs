//! A partially downloaded file, with its running SHA-256.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::HubError;

/// A partially downloaded file.
pub(super) struct PartialFile {
    path: PathBuf,
    file: File,
    length: u64,
    hasher: Sha256,
}

impl PartialFile {
    /// Opens or creates the file, and hashes its content.
    pub(super) fn open(path: &Path) -> Result<PartialFile, HubError> {
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            let mut hasher = Sha256::new();
            let length = io::copy(&mut file, &mut hasher)?;
            Ok(PartialFile { path: path.to_owned(), file, length, hasher })
        };
        open().map_err(|source| HubError::Cache { path: path.to_owned(), source })
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(|source| self.error(source))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the file.
    pub(super) fn clear(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).map_err(|source| self.error(source))?;
        self.hasher = Sha256::new();
        self.length = 0;
        Ok(())
    }

    /// SHA-256 of the content.
    pub(super) fn sha256(&self) -> String {
        use std::fmt::Write;

        let digest = self.hasher.clone().finalize();
        digest.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Syncs the file to disk and renames it to `blob`. Fails if another process has written to it as well, as where the
    /// file system has no locks.
    pub(super) fn finish(self, blob: &Path) -> Result<(), HubError> {
        self.file.sync_all().map_err(|source| self.error(source))?;
        let length = self.file.metadata().map_err(|source| self.error(source))?.len();
        if length != self.length {
            let message = format!("another process wrote to it: {length} bytes instead of {}", self.length);
            return Err(self.error(io::Error::other(message)));
        }
        let PartialFile { path, file, .. } = self;
        drop(file);
        std::fs::rename(&path, blob).map_err(|source| HubError::Cache { path, source })
    }

    fn error(&self, source: io::Error) -> HubError {
        HubError::Cache { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_file_resumes_and_has_the_digest_of_the_complete_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.part");
        PartialFile::open(&path).expect("opens").append(b"ab").expect("appends");
        let mut part = PartialFile::open(&path).expect("opens again");
        assert_eq!(part.length(), 2);
        part.append(b"c").expect("appends");
        assert_eq!(part.sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        part.finish(&folder.path().join("x")).expect("renames");
        assert_eq!(std::fs::read(folder.path().join("x")).expect("reads"), b"abc");
        assert!(!path.exists());
    }

    #[test]
    fn a_part_that_another_process_wrote_to_as_well_is_not_taken_for_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.part");
        let mut part = PartialFile::open(&path).expect("opens");
        part.append(b"ab").expect("appends");
        PartialFile::open(&path).expect("opens too").append(b"ab").expect("appends");
        part.append(b"c").expect("appends");
        let error = part.finish(&folder.path().join("x")).expect_err("it has bytes of both").to_string();
        assert!(error.contains("x.part") && !folder.path().join("x").exists(), "{error}");
    }

    #[test]
    fn a_cleared_part_starts_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.part");
        let mut part = PartialFile::open(&path).expect("opens");
        part.append(b"wrong").expect("appends");
        part.clear().expect("clears");
        part.append(b"abc").expect("appends");
        assert_eq!((part.length(), std::fs::read(&path).expect("reads")), (3, b"abc".to_vec()));
        assert!(part.sha256().starts_with("ba7816bf"));
    }
}
