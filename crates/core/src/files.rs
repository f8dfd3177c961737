//! Paths of a model's files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Paths of a model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFiles {
    /// The model's folder.
    pub folder: PathBuf,
    /// Files of each set of weights, by the set's name in the card.
    pub weights: BTreeMap<String, Vec<PathBuf>>,
    /// Weights of the modules after pooling, by module folder.
    pub modules: BTreeMap<String, PathBuf>,
}
