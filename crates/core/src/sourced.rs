//! A value together with the file or flag that set it.

use serde::{Deserialize, Serialize};

/// A value together with the file or flag that set it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The file of the model or the command-line flag.
    pub source: String,
}

impl<T> Sourced<T> {
    /// Pairs `value` with the file or flag that set it.
    pub fn new(value: T, source: impl Into<String>) -> Sourced<T> {
        Sourced { value, source: source.into() }
    }
}
