//! The repository's files, and reports of broken rules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crate outside of `crates/`, which is a Python package.
const PYTHON: &str = "python";

/// A text file of the repository.
pub(crate) struct File {
    /// Its path from the root, with `/` on every system.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

impl File {
    /// Whether it is in `folder` of a crate, such as `src`.
    pub(crate) fn is_in(&self, folder: &str) -> bool {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.nth(1) == Some(folder),
            Some(PYTHON) => parts.next() == Some(folder),
            Some(_) | None => false,
        }
    }

    /// Whether it is in the folder of a crate that is no example.
    pub(crate) fn is_in_crate(&self) -> bool {
        matches!(self.path.split('/').next(), Some("crates" | PYTHON))
    }

    /// Whether it is Rust.
    pub(crate) fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }
}

/// Every text file that git tracks or would add.
pub(crate) fn files() -> Vec<File> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(listing.status.success(), "git lists no files: {}", String::from_utf8_lossy(&listing.stderr));
    let paths = String::from_utf8(listing.stdout).expect("paths are UTF-8");
    let files: Vec<_> = paths
        .split_terminator('\0')
        .filter_map(|path| {
            let text = fs::read_to_string(root().join(path)).ok()?;
            Some(File { path: path.to_owned(), text })
        })
        .collect();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"), "git lists no Cargo.toml");
    files
}

/// The folders of crates, from the root.
pub(crate) fn folders() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root().join("crates"))
        .expect("crates/ can be read")
        .map(|entry| entry.expect("crates/ can be listed").path())
        .filter(|path| path.join("Cargo.toml").is_file())
        .filter_map(|path| Some(format!("crates/{}", path.file_name()?.to_str()?)))
        .chain([PYTHON.to_owned()])
        .collect();
    names.sort();
    names
}

/// Fails with one line for each complaint.
#[track_caller]
pub(crate) fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}
