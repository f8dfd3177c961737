//! A writable overlay of the user's project in a temporary folder. The project itself is never written.
//!
//! `cargo tree` writes `Cargo.lock` if it is missing or older than the manifest, and `--locked` fails in exactly
//! these cases. So cargo runs in an overlay: ancestor folders of the workspace are real folders, all other entries
//! are symlinks to the originals, and `Cargo.lock` is a copy. Relative paths, `.cargo/config.toml` and toolchain
//! files keep their meaning. A fix is verified by writing it to the overlay.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::{env, fs, io, process};

/// The overlay's temporary folder, removed on drop.
pub(crate) struct Overlay {
    base: PathBuf,
    /// Folders of the project that are real folders in the overlay.
    materialized: BTreeSet<PathBuf>,
}

impl Overlay {
    /// Creates the overlay of a workspace. `workspace` is canonical.
    pub(crate) fn of(workspace: &Path) -> io::Result<Self> {
        let mut overlay = Self { base: temporary_folder()?, materialized: BTreeSet::new() };
        overlay.materialize(workspace)?;
        let lock = workspace.join("Cargo.lock");
        if lock.is_file() {
            overlay.write(&lock, &fs::read_to_string(&lock)?)?;
        }
        Ok(overlay)
    }

    /// The overlay path of a project path.
    pub(crate) fn path(&self, real: &Path) -> PathBuf {
        let names = real.components().filter(|part| matches!(part, Component::Normal(_)));
        names.fold(self.base.clone(), |path, name| path.join(name))
    }

    /// Replaces overlay paths in `text` with project paths.
    pub(crate) fn restore_paths(&self, text: &str) -> String {
        text.replace(&*self.base.to_string_lossy(), "")
    }

    /// `CARGO_TARGET_DIR` for commands in the overlay.
    pub(crate) fn target_folder(&self) -> PathBuf {
        self.base.join(".sconce-target")
    }

    /// Writes a file to the overlay and replaces its symlink.
    pub(crate) fn write(&mut self, real: &Path, text: &str) -> io::Result<()> {
        self.materialize(real.parent().unwrap_or(real))?;
        let copy = self.path(real);
        if copy.is_symlink() {
            fs::remove_file(&copy)?;
        }
        fs::write(copy, text)
    }

    /// Turns `folder` and its ancestors into real folders of symlinks.
    pub(crate) fn materialize(&mut self, folder: &Path) -> io::Result<()> {
        let mut ancestors: Vec<&Path> = folder.ancestors().collect();
        ancestors.reverse();
        for real in ancestors {
            if !self.materialized.insert(real.to_owned()) {
                continue;
            }
            let copy = self.path(real);
            if copy.is_symlink() {
                fs::remove_file(&copy)?;
            }
            fs::create_dir_all(&copy)?;
            match fs::read_dir(real) {
                Ok(entries) => link_entries(&copy, entries)?,
                Err(error) if real == folder => return Err(error),
                // Cargo can traverse an ancestor folder that it cannot list.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // Symlinks are removed, not followed. A failure leaves the folder to the system's temporary file cleanup.
        fs::remove_dir_all(&self.base).ok();
    }
}

fn link_entries(folder: &Path, entries: fs::ReadDir) -> io::Result<()> {
    for entry in entries {
        let entry = entry?;
        // Cargo reads its home folder anyway. A link to it would apply that configuration twice.
        let is_cargo_home = cargo_home().is_some_and(|home| home == entry.path());
        if !is_cargo_home {
            link(&entry.path(), &folder.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| env::home_dir().map(|home| home.join(".cargo")))
}

fn temporary_folder() -> io::Result<PathBuf> {
    let parent = fs::canonicalize(env::temp_dir())?;
    let mut number = 0;
    loop {
        let folder = parent.join(format!("sconce-doctor-{}-{number}", process::id()));
        match private_folder().create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Creates folders readable by the user only, since the symlinks reveal file names of the user.
#[cfg(unix)]
fn private_folder() -> fs::DirBuilder {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

#[cfg(not(unix))]
fn private_folder() -> fs::DirBuilder {
    fs::DirBuilder::new()
}

#[cfg(unix)]
fn link(original: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(original, link)
}

#[cfg(windows)]
fn link(original: &Path, link: &Path) -> io::Result<()> {
    if original.is_dir() {
        std::os::windows::fs::symlink_dir(original, link)
    } else {
        std::os::windows::fs::symlink_file(original, link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_to_the_overlay_do_not_reach_the_project() {
        let project = tempfile::tempdir().expect("a temporary folder");
        let project = fs::canonicalize(project.path()).expect("a real folder");
        fs::create_dir_all(project.join("ws/member")).expect("folders");
        for file in ["ws/Cargo.lock", "ws/member/Cargo.toml", "beside.txt"] {
            fs::write(project.join(file), "original").expect("a file");
        }
        let mut overlay = Overlay::of(&project.join("ws")).expect("an overlay");
        overlay.write(&project.join("ws/member/Cargo.toml"), "changed").expect("a file");
        fs::write(overlay.path(&project.join("ws/Cargo.lock")), "changed").expect("a file");
        let read = |path: &Path| fs::read_to_string(path).expect("a file");
        assert_eq!(read(&overlay.path(&project.join("ws/member/Cargo.toml"))), "changed");
        assert_eq!(read(&overlay.path(&project.join("beside.txt"))), "original");
        let base = overlay.base.clone();
        drop(overlay);
        assert!(!base.exists());
        for file in ["ws/Cargo.lock", "ws/member/Cargo.toml", "beside.txt"] {
            assert_eq!(read(&project.join(file)), "original");
        }
    }
}
