//! Progress events of opening a model.

use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use crate::source::hub::Progress;

/// Progress of opening a model.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A placement is being probed.
    Proving {
        /// The placement.
        placement: &'a Placement,
        /// Completed cases.
        done: usize,
        /// All cases.
        total: usize,
    },
    /// A placement is probed again after a transient failure.
    Retrying {
        /// The placement.
        placement: &'a Placement,
        /// Number of this attempt, from 2.
        attempt: u32,
        /// Failure of the last attempt.
        why: &'a Obstacle,
    },
    /// A file is being hashed.
    Hashing {
        /// Path of the file.
        file: &'a str,
        /// Bytes hashed.
        done: u64,
        /// Size in bytes.
        total: u64,
    },
    /// The weights of a model are being loaded.
    Loading {
        /// The placement.
        placement: &'a Placement,
        /// Bytes read.
        done: u64,
        /// Size in bytes.
        total: u64,
    },
    /// A model is being fetched from the hub.
    Hub(Progress<'a>),
}
