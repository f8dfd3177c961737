//! The data folder (`SCONCE_HOME`), and atomic writes to it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use etcetera::base_strategy::{BaseStrategy, Xdg};

/// Counter for file names that are unique in this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// `SCONCE_HOME`, else `sconce` in the user's cache folder, else a private folder in the temporary folder.
pub(crate) fn default_home() -> PathBuf {
    let home = std::env::var_os("SCONCE_HOME").filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || Xdg::new().ok().map(|base| base.cache_dir()).filter(|folder| folder.is_absolute());
    home.or_else(|| Some(cache()?.join("sconce"))).unwrap_or_else(|| private_folder(&std::env::temp_dir()))
}

/// A folder in the shared folder `parent` that only this user can access: the same at every start, or a fresh one if
/// another user took the name.
fn private_folder(parent: &Path) -> PathBuf {
    let fresh = fresh_folder(parent);
    let Some(owner) = owner(&fresh) else { return fresh };
    let lasting = parent.join(format!("sconce-{owner}"));
    if make(&lasting).is_ok() || is_private(&lasting, owner) {
        let _ = fs::remove_dir(&fresh);
        return lasting;
    }
    fresh
}

/// Creates a folder in `parent` that only this user can access.
pub(crate) fn fresh_folder(parent: &Path) -> PathBuf {
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let folder = parent.join(format!("sconce-{}-{number}-{time:x}", std::process::id()));
        match make(&folder) {
            // An existing folder may belong to an attacker.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // Writing to the folder reports the error.
            Ok(()) | Err(_) => return folder,
        }
    }
}

#[cfg(unix)]
fn make(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    DirBuilder::new().mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().create(folder)
}

/// User id of the owner of `folder`.
#[cfg(unix)]
fn owner(folder: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(folder).ok().map(|metadata| metadata.uid())
}

/// Temporary folders of other systems are private.
#[cfg(not(unix))]
fn owner(_folder: &Path) -> Option<u32> {
    None
}

/// Whether `folder` is a real folder that only `owner` can access.
#[cfg(unix)]
fn is_private(folder: &Path, owner: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(folder).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == owner && metadata.mode().trailing_zeros() >= 6
    })
}

#[cfg(not(unix))]
fn is_private(_folder: &Path, _owner: u32) -> bool {
    false
}

/// Writes `bytes` to `path` atomically. Symlinks are not followed.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let draft = path.with_extension(format!("{}-{number}.draft", std::process::id()));
    // A crashed process with the same id may have left it.
    let _ = fs::remove_file(&draft);
    let written = File::options()
        .write(true)
        .create_new(true)
        .open(&draft)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(folder: &Path) -> u32 {
        fs::symlink_metadata(folder).expect("it is there").permissions().mode() & 0o777
    }

    #[test]
    fn a_private_folder_is_the_same_at_every_start_and_nobody_else_can_enter_it() {
        let shared = tempfile::tempdir().expect("a folder");
        let first = private_folder(shared.path());
        assert_eq!(mode(&first), 0o700);
        assert_eq!(private_folder(shared.path()), first);
        assert_eq!(fs::read_dir(shared.path()).expect("a folder").count(), 1, "nothing is left over");
    }

    #[test]
    fn a_folder_that_others_can_enter_or_that_is_a_link_is_not_trusted() {
        let shared = tempfile::tempdir().expect("a folder");
        let lasting = private_folder(shared.path());
        for open in [0o710, 0o701, 0o770, 0o777] {
            fs::set_permissions(&lasting, fs::Permissions::from_mode(open)).expect("a mode can be set");
            let fresh = private_folder(shared.path());
            assert_ne!(fresh, lasting, "{open:o}");
            assert_eq!(mode(&fresh), 0o700);
        }
        fs::remove_dir(&lasting).expect("it is empty");
        let elsewhere = tempfile::tempdir().expect("a folder");
        symlink(elsewhere.path(), &lasting).expect("a link can be made");
        assert_ne!(private_folder(shared.path()), lasting, "a link is not followed");
        assert!(!is_private(shared.path(), owner(shared.path()).expect("an owner") + 1), "another's folder");
    }

    #[test]
    fn a_draft_that_is_a_link_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, victim) = (folder.path().join("finding.json"), folder.path().join("victim"));
        fs::write(&victim, "precious").expect("a file can be written");
        let next = NEXT.load(Ordering::Relaxed);
        for number in next..next + 64 {
            let draft = path.with_extension(format!("{}-{number}.draft", std::process::id()));
            symlink(&victim, draft).expect("a link can be made");
        }
        write_atomically(&path, b"found").expect("it is written");
        assert_eq!(fs::read_to_string(&victim).expect("the file is there"), "precious");
        assert_eq!(fs::read_to_string(&path).expect("the file is there"), "found");
        assert!(fs::symlink_metadata(&path).expect("the file is there").is_file());
    }
}
