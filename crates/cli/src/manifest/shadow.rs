//! A shadow of the user's project in a temporary folder, so that nothing is ever written into the project.
//!
//! `cargo tree` writes Cargo.lock where there is none or where it lags behind the manifest, and `--locked`
//! would refuse exactly the people who have just edited a line. So cargo is pointed at a shadow: the folders
//! on the way to the workspace are real, everything else in them is a link to the original, and Cargo.lock is
//! a copy. Relative paths, `.cargo/config.toml` and toolchain files keep their meaning, and a fix can be
//! tried by writing it there.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::{env, fs, io, process};

/// The temporary folder; it goes away with the value.
pub(super) struct Shadow {
    base: PathBuf,
    unfolded: BTreeSet<PathBuf>,
}

impl Shadow {
    /// The shadow of a workspace, given by its real and absolute folder.
    pub(super) fn of(workspace: &Path) -> io::Result<Self> {
        let mut shadow = Self { base: temporary_folder()?, unfolded: BTreeSet::new() };
        shadow.unfold(workspace)?;
        let lock = workspace.join("Cargo.lock");
        if lock.is_file() {
            shadow.write(&lock, &fs::read_to_string(&lock)?)?;
        }
        Ok(shadow)
    }

    /// Where a real path lies in the shadow.
    pub(super) fn path(&self, real: &Path) -> PathBuf {
        let names = real.components().filter(|part| matches!(part, Component::Normal(_)));
        names.fold(self.base.clone(), |path, name| path.join(name))
    }

    /// The text with shadow paths turned back into real ones.
    pub(super) fn real(&self, text: &str) -> String {
        text.replace(&*self.base.to_string_lossy(), "")
    }

    /// A folder for what cargo wants to cache.
    pub(super) fn target_folder(&self) -> PathBuf {
        self.base.join(".sconce-target")
    }

    /// Writes a file into the shadow, in the place of the link to the original.
    pub(super) fn write(&mut self, real: &Path, text: &str) -> io::Result<()> {
        self.unfold(real.parent().unwrap_or(real))?;
        let place = self.path(real);
        if place.is_symlink() {
            fs::remove_file(&place)?;
        }
        fs::write(place, text)
    }

    /// Makes `folder` and all above it real folders in the shadow, filled with links.
    pub(super) fn unfold(&mut self, folder: &Path) -> io::Result<()> {
        let mut way: Vec<&Path> = folder.ancestors().collect();
        way.reverse();
        for real in way {
            if !self.unfolded.insert(real.to_owned()) {
                continue;
            }
            let place = self.path(real);
            if place.is_symlink() {
                fs::remove_file(&place)?;
            }
            fs::create_dir_all(&place)?;
            match fs::read_dir(real) {
                Ok(entries) => fill(&place, entries)?,
                Err(error) if real == folder => return Err(error),
                // A folder above the project need not be readable for cargo to pass through it.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // Links are removed, not followed. What cannot be removed is left to the system's own cleaning.
        fs::remove_dir_all(&self.base).ok();
    }
}

fn fill(place: &Path, entries: fs::ReadDir) -> io::Result<()> {
    for entry in entries {
        let entry = entry?;
        // Cargo reads its home anyway; as the configuration of a parent folder it would count twice.
        let is_cargo_home = cargo_home().is_some_and(|home| home == entry.path());
        if !is_cargo_home {
            link(&entry.path(), &place.join(entry.file_name()))?;
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

/// The links name what lies in the user's folders, which is nobody else's business.
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
fn link(original: &Path, place: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(original, place)
}

#[cfg(windows)]
fn link(original: &Path, place: &Path) -> io::Result<()> {
    if original.is_dir() {
        std::os::windows::fs::symlink_dir(original, place)
    } else {
        std::os::windows::fs::symlink_file(original, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_into_the_shadow_does_not_reach_the_project() {
        let project = tempfile::tempdir().expect("a temporary folder");
        let project = fs::canonicalize(project.path()).expect("a real folder");
        fs::create_dir_all(project.join("ws/member")).expect("folders");
        for file in ["ws/Cargo.lock", "ws/member/Cargo.toml", "beside.txt"] {
            fs::write(project.join(file), "original").expect("a file");
        }
        let mut shadow = Shadow::of(&project.join("ws")).expect("a shadow");
        shadow.write(&project.join("ws/member/Cargo.toml"), "changed").expect("a file");
        fs::write(shadow.path(&project.join("ws/Cargo.lock")), "changed").expect("a file");
        let read = |path: &Path| fs::read_to_string(path).expect("a file");
        assert_eq!(read(&shadow.path(&project.join("ws/member/Cargo.toml"))), "changed");
        assert_eq!(read(&shadow.path(&project.join("beside.txt"))), "original");
        let base = shadow.base.clone();
        drop(shadow);
        assert!(!base.exists());
        for file in ["ws/Cargo.lock", "ws/member/Cargo.toml", "beside.txt"] {
            assert_eq!(read(&project.join(file)), "original");
        }
    }
}
