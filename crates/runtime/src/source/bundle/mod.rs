//! A model as one file, for machines without a network: a tar of its files after a manifest with their checksums.
//!
//! The manifest is the first entry. Every other entry is a regular file of the manifest with its size and SHA-256;
//! anything else is rejected. Evidence in a bundle is from the machine that wrote it: it is informative, and placements
//! are proved again on every other machine.

mod error;
mod manifest;
mod unpack;
mod write;

pub use error::BundleError;
pub use manifest::{Manifest, ManifestFile};
pub use unpack::name;
pub(crate) use unpack::{prompts, unpack};
pub use write::write;
