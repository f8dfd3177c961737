//! Opens model files: regular files only. A pipe would block forever, and a device has no end.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a regular file, following symlinks.
pub fn open(path: &Path) -> Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path)
}

/// Reads a regular file of at most `most` bytes.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let length = fs::metadata(path)?.len();
        let text = format!("it has {length} bytes, and at most {most} are read");
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let whole = fs::read(&path).expect("the manifest is there");
        let length = whole.len() as u64;
        assert_eq!(read(&path, length).expect("it fits"), whole);
        let error = read(&path, length - 1).expect_err("it is too long");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(
            error.to_string().contains(&format!("{length} bytes, and at most {}", length - 1)),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(open(folder).expect_err("a folder").kind(), ErrorKind::InvalidInput);
        if cfg!(unix) {
            assert_eq!(
                read(Path::new("/dev/zero"), 8).expect_err("a device").kind(),
                ErrorKind::InvalidInput
            );
        }
        assert_eq!(open(&folder.join("nothing")).expect_err("no file").kind(), ErrorKind::NotFound);
    }
}
