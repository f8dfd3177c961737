//! Errors of writing and unpacking bundles.

use std::io;
use std::path::PathBuf;

use super::manifest::{MANIFEST, VERSION};

/// Error of a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file can't be read.
    #[error("the bundle `{}` can't be read", path.display())]
    Unreadable {
        /// The bundle.
        path: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// The file is not a bundle.
    #[error(
        "`{}` is not a bundle: it does not start with `{}`\n\
         hint: a model is a folder, an id of the hub, or a file made by `sconce bundle MODEL -o FILE`",
        path.display(), MANIFEST
    )]
    NotABundle {
        /// The file.
        path: PathBuf,
    },
    /// The layout version is not supported.
    #[error(
        "the bundle `{}` has the layout {version}, and this sconce reads {}\n\
         hint: make it again with this version of sconce", path.display(), VERSION
    )]
    Version {
        /// The bundle.
        path: PathBuf,
        /// Layout version.
        version: u32,
    },
    /// A file does not match the manifest.
    #[error(
        "the bundle `{}` was changed: `{file}` {what}\nhint: copy it again from where it was made", path.display()
    )]
    Changed {
        /// The bundle.
        path: PathBuf,
        /// Path in the archive.
        file: String,
        /// The difference.
        what: String,
    },
    /// A file can't be written.
    #[error("`{}` can't be written", path.display())]
    Unwritten {
        /// File or folder.
        path: PathBuf,
        /// I/O error.
        source: io::Error,
    },
    /// A file of the model can't be bundled.
    #[error("`{}` can't be bundled", path.display())]
    Unbundled {
        /// The file.
        path: PathBuf,
        /// I/O error.
        source: io::Error,
    },
}
