//! A model as one file, for machines without a network: a tar of its files behind a list of their checksums.
//!
//! The list is the first entry. Every other entry is a plain file that the list names, with its length and its
//! SHA-256; anything else is refused. The evidence in it tells how the model did where the bundle was made: it is
//! there to be read, and proves nothing elsewhere.

mod unpack;
mod write;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(crate) use unpack::unpack;
pub use write::write;

/// The entry with the list.
const LIST: &str = "sconce-bundle.json";
/// What this version writes and reads.
const VERSION: u32 = 1;
/// The folder of a bundle with the model's files.
const MODEL: &str = "model";
/// The folder of a bundle with what was found where it was made.
const EVIDENCE: &str = "evidence";
/// Bytes of the longest list that is read.
const LONGEST_LIST: u64 = 1 << 20;

/// What a bundle holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The version of the layout.
    pub sconce_bundle: u32,
    /// What the model is called.
    pub name: String,
    /// The version of sconce that made it.
    pub made_by: String,
    /// Its files, in their order.
    pub files: Vec<Listed>,
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// Where it belongs: `model/config.json`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// When it was last changed where it comes from, in nanoseconds since 1970: a part of what weights are known by,
    /// so that vectors of a bundle are of the same numerics class as those of its model.
    pub modified: u64,
}

/// Why a bundle could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is not there, or can't be read.
    #[error("the bundle `{}` can't be read", path.display())]
    Unreadable {
        /// The bundle.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is something else.
    #[error(
        "`{}` is no bundle: it does not begin with `{}`\n\
         hint: a model is a folder, an id of the hub, or a file made by `sconce bundle MODEL -o FILE`",
        path.display(), LIST
    )]
    NotABundle {
        /// The file.
        path: PathBuf,
    },
    /// It is of another version.
    #[error(
        "the bundle `{}` has the layout {version}, and this sconce reads {}\n\
         hint: make it again with this version of sconce", path.display(), VERSION
    )]
    Version {
        /// The bundle.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// A file in it is not what the list says.
    #[error(
        "the bundle `{}` was changed: `{file}` {what}\nhint: copy it again from where it was made", path.display()
    )]
    Changed {
        /// The bundle.
        path: PathBuf,
        /// The file in it.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// Files can't be written where they belong.
    #[error("`{}` can't be written", path.display())]
    Unwritten {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the model can't be put into a bundle.
    #[error("`{}` can't be bundled", path.display())]
    Unbundled {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the model in the bundle at `path` is called.
pub fn name(path: &Path) -> Result<String, BundleError> {
    Ok(unpack::list(path)?.0.name)
}

/// Everything that `reader` gives goes through `write`; its length and its SHA-256.
fn digest(
    reader: &mut impl Read,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<(u64, String)> {
    let (mut hash, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return Ok((length, digits(&hash.finalize())));
        }
        write(&buffer[..count])?;
        hash.update(&buffer[..count]);
        length += count as u64;
    }
}

/// The length and the SHA-256 of a file.
fn digest_of(path: &Path) -> io::Result<(u64, String)> {
    digest(&mut File::open(path)?, &mut |_| Ok(()))
}

fn digits(bytes: &[u8]) -> String {
    use std::fmt::Write;

    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// When a file was last changed, as a list has it.
fn modified(path: &Path) -> io::Result<u64> {
    let time = std::fs::metadata(path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(u64::try_from(time.as_nanos()).unwrap_or(0))
}

/// The same as a time.
fn time(modified: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(modified)
}
