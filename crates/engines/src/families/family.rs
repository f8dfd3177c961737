//! A family of models: how its config becomes a description, and its tensor names.

use std::fmt;

use crate::config::{Config, Unsupported};
use crate::description::Description;
use crate::tensor_names::TensorNames;

/// A family of models.
pub struct Family {
    /// Display name.
    pub name: &'static str,
    /// Values of `model_type` in `config.json`.
    pub model_types: &'static [&'static str],
    /// A config key and its value that distinguish the family from another one with the same `model_type`.
    pub condition: Option<(&'static str, &'static str)>,
    /// The key of the nested config that describes the text model; none if it is the whole config.
    pub nested_config: Option<&'static str>,
    /// Sizes that configs may omit, by key.
    pub default_sizes: &'static [(&'static str, usize)],
    /// Well-known models of the family.
    pub examples: &'static str,
    /// The goldens that the family is tested against.
    pub goldens: &'static [&'static str],
    /// The goldens that its text generation is tested against; empty if it does not generate.
    pub generation_goldens: &'static [&'static str],
    /// Completes a neutral description of the config's sizes.
    pub describe: fn(&Config<'_>, &mut Description) -> Result<(), Unsupported>,
    /// Tensor names.
    pub names: TensorNames,
}

impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
