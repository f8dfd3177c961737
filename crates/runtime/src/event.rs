//! What a long piece of work tells while it runs, for whoever wants to draw it.

use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;

use crate::hub::Progress;

/// What is going on.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A placement is being tried.
    Proving {
        /// Which.
        placement: &'a Placement,
        /// Cases answered.
        done: usize,
        /// Cases asked.
        total: usize,
    },
    /// A placement is tried again whose last attempt was killed or took too long.
    Retrying {
        /// Which.
        placement: &'a Placement,
        /// The number of the attempt that begins, from 2.
        attempt: u32,
        /// What the last attempt ended with.
        why: &'a Obstacle,
    },
    /// A file whose SHA-256 is not known yet is being read.
    Hashing {
        /// Its path.
        file: &'a str,
        /// Bytes read.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A model is coming from the hub.
    Hub(Progress<'a>),
}
