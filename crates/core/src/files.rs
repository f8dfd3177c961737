//! Where the files of a model lie.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where the files of a model lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFiles {
    /// The folder that holds them.
    pub folder: PathBuf,
    /// The files of each set of weights, by the name that the card gives the set.
    pub weights: BTreeMap<String, Vec<PathBuf>>,
    /// The weights of each module after pooling, by the module's folder.
    pub modules: BTreeMap<String, PathBuf>,
}
