//! The manifest of a bundle, and checksums of its files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Name of the manifest entry.
pub(super) const MANIFEST: &str = "sconce-bundle.json";
/// Layout version that this build writes and reads.
pub(super) const VERSION: u32 = 1;
/// Folder of the model's files.
pub(super) const MODEL: &str = "model";
/// Folder of the evidence from the machine that wrote the bundle.
pub(super) const EVIDENCE: &str = "evidence";
/// Size limit of a manifest in bytes.
pub(super) const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Content of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Layout version.
    pub sconce_bundle: u32,
    /// Name of the model.
    pub name: String,
    /// Version of sconce that wrote the bundle.
    pub made_by: String,
    /// Prompts that the files of the model lack.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prompts: BTreeMap<String, String>,
    /// Files in archive order.
    pub files: Vec<ManifestFile>,
}

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Path in the archive, such as `model/config.json`.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
    /// Modification time in nanoseconds since the Unix epoch. It is part of the identity of weights: with it, a bundle
    /// has the same numerics class as its model.
    pub modified: u64,
}

/// Copies `reader` to `write`. Returns length and SHA-256.
pub(super) fn digest(
    reader: &mut impl Read,
    write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<(u64, String)> {
    let (mut hash, mut length, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = reader.read(&mut buffer)?;
        if count == 0 {
            return Ok((length, hex(&hash.finalize())));
        }
        write(&buffer[..count])?;
        hash.update(&buffer[..count]);
        length += count as u64;
    }
}

/// Length and SHA-256 of a file.
pub(super) fn digest_of(path: &Path) -> io::Result<(u64, String)> {
    digest(&mut File::open(path)?, &mut |_| Ok(()))
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;

    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Modification time of a file, as in the manifest.
pub(super) fn modified(path: &Path) -> io::Result<u64> {
    let time = std::fs::metadata(path)?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(u64::try_from(time.as_nanos()).unwrap_or(0))
}

/// [`modified`] as a system time.
pub(super) fn time(modified: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(modified)
}
