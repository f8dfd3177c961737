//! Atomic output files: written under a temporary name and renamed when complete. A failure or a signal leaves the
//! previous file unchanged.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;

/// A file that is being written.
pub(crate) struct OutputFile {
    /// The path the user named, for messages.
    named: PathBuf,
    file: File,
    temporary: Arc<Mutex<Option<Temporary>>>,
}

/// A temporary file that is not yet renamed or removed.
struct Temporary {
    path: PathBuf,
    target: PathBuf,
    /// Progress of the command: `after 512 of 1000 texts`.
    progress: String,
}

impl OutputFile {
    /// Opens a temporary file next to `path`. SIGINT, SIGTERM and SIGHUP remove it before they end the process. Pipes
    /// and devices are written directly.
    pub(crate) fn create(path: &Path) -> anyhow::Result<OutputFile> {
        let unwritable = || format!("could not write: `{}`", path.display());
        let existing = fs::metadata(path).ok();
        if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
            let file = File::create(path).with_context(unwritable)?;
            return Ok(OutputFile { named: path.to_owned(), file, temporary: Arc::default() });
        }
        // Replace the target of a symlink, not the symlink.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let (temporary, file) = create_beside(&target).with_context(unwritable)?;
        if let Some(existing) = existing {
            fs::set_permissions(&temporary, existing.permissions()).with_context(unwritable)?;
        }
        let temporary = Temporary { path: temporary, target, progress: String::new() };
        let temporary = Arc::new(Mutex::new(Some(temporary)));
        remove_on_signals(path, &temporary).with_context(unwritable)?;
        Ok(OutputFile { named: path.to_owned(), file, temporary })
    }

    /// The open file.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Current path of the open file.
    pub(crate) fn path(&self) -> PathBuf {
        lock(&self.temporary).as_ref().map_or_else(|| self.named.clone(), |temporary| temporary.path.clone())
    }

    /// Sets the progress for the message after a signal: `after 512 of 1000 texts`.
    pub(crate) fn set_progress(&self, progress: String) {
        if let Some(temporary) = lock(&self.temporary).as_mut() {
            temporary.progress = progress;
        }
    }

    /// Renames the file to its target. All data must be written.
    pub(crate) fn commit(self) -> anyhow::Result<()> {
        let mut guard = lock(&self.temporary);
        if let Some(Temporary { path, target, .. }) = guard.as_ref() {
            let renamed = self.file.sync_all().and_then(|()| fs::rename(path, target));
            renamed.with_context(|| format!("could not write: `{}`", self.named.display()))?;
        }
        *guard = None;
        Ok(())
    }
}

/// Removes a file that was not committed.
impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(temporary) = lock(&self.temporary).take() {
            let _ = fs::remove_file(temporary.path);
        }
    }
}

fn lock(temporary: &Mutex<Option<Temporary>>) -> MutexGuard<'_, Option<Temporary>> {
    temporary.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a file next to `target`, with the same extension.
fn create_beside(target: &Path) -> io::Result<(PathBuf, File)> {
    let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let (stem, extension) = (part(target.file_stem()), part(target.extension()));
    let mut number = 0;
    loop {
        let path =
            target.with_file_name(format!(".{stem}.{}-{number}.partial.{extension}", std::process::id()));
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            opened => return opened.map(|file| (path, file)),
        }
    }
}

/// On a signal, removes the temporary file, prints the progress, and lets the signal end the process.
#[cfg(unix)]
fn remove_on_signals(named: &Path, temporary: &Arc<Mutex<Option<Temporary>>>) -> io::Result<()> {
    use std::io::{IsTerminal, Write};
    use std::thread;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (named, temporary) = (named.to_owned(), Arc::clone(temporary));
    let wait = move || {
        let Some(signal) = signals.forever().next() else { return };
        // Held until the process ends, so that no rename follows.
        let mut guard = lock(&temporary);
        if let Some(Temporary { path, target, progress }) = guard.take() {
            let _ = fs::remove_file(path);
            let mut stderr = io::stderr().lock();
            // A progress bar leaves the cursor on its line.
            let before = if stderr.is_terminal() { "\n" } else { "" };
            let space = if progress.is_empty() { "" } else { " " };
            let file = if target.exists() { "is unchanged" } else { "was not written" };
            let _ = writeln!(stderr, "{before}interrupted{space}{progress}: `{}` {file}", named.display());
        }
        let _ = emulate_default_handler(signal);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(|_| ())
}

/// Without Unix signals, an interrupted command leaves its temporary file.
#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the other systems can fail here")]
fn remove_on_signals(_named: &Path, _temporary: &Arc<Mutex<Option<Temporary>>>) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_committed_and_not_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.npy");
        fs::write(&path, "old").expect("a file");
        let output = OutputFile::create(&path).expect("opens");
        output.file().and_then(|mut file| file.write_all(b"half")).expect("writes");
        assert_eq!(fs::read(&path).expect("reads"), b"old");
        drop(output);
        assert_eq!(
            (fs::read(&path).expect("reads"), names(folder.path())),
            (b"old".to_vec(), vec!["x.npy".to_owned()])
        );

        let output = OutputFile::create(&path).expect("opens");
        assert_eq!(output.path().extension(), path.extension());
        output.file().and_then(|mut file| file.write_all(b"new")).expect("writes");
        output.commit().expect("renames");
        assert_eq!(
            (fs::read(&path).expect("reads"), names(folder.path())),
            (b"new".to_vec(), vec!["x.npy".to_owned()])
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_and_the_permissions_of_the_old_file_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("real.jsonl"), folder.path().join("link.jsonl"));
        fs::write(&file, "old").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("permissions");
        symlink(&file, &link).expect("a link");
        let output = OutputFile::create(&link).expect("opens");
        output.file().and_then(|mut file| file.write_all(b"new")).expect("writes");
        output.commit().expect("renames");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read(&file).expect("reads"), b"new");
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o640);
    }
}
