//! The name of a model in arguments.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use sconce::catalogue;

/// Any text. Shells complete the short names of the catalogue.
#[derive(Clone)]
pub(crate) struct ModelName;

impl TypedValueParser for ModelName {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(catalogue::models().iter().map(|model| PossibleValue::new(model.name.as_str()))))
    }
}
