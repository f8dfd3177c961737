//! Hashes of serializable values.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// First 128 bits of the SHA-256 of a value's JSON, in hexadecimal.
pub(crate) fn hash(value: &impl Serialize) -> String {
    let digest = Sha256::digest(serde_json::to_vec(value).unwrap_or_default());
    digest.iter().take(16).fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
