//! The memory of a model.

use serde::{Deserialize, Serialize};

/// Bytes of main memory that a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Footprint {
    /// Once it serves.
    pub(crate) resident: u64,
    /// At most while it is loaded.
    pub(crate) peak: u64,
}
