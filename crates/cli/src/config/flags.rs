//! Command-line flags of `serve`, generated from the configuration keys.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use toml::Value;

use crate::config::keys::keys;
use crate::model_name::ModelName;

/// The parsed flags.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Flags {
    /// Sources of models.
    pub(crate) models: Vec<String>,
    /// The configuration file.
    pub(crate) config: Option<PathBuf>,
    /// Keys and their values.
    pub(crate) values: Vec<(String, String)>,
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let models = Arg::new("models")
            .value_name("MODEL")
            .num_args(0..)
            .value_parser(ModelName)
            .hide_possible_values(true)
            .help("Short names, model folders, GGUF files, ids on the Hugging Face Hub, or bundles [default: the models of the configuration file]");
        let model = Arg::new("model")
            .long("model")
            .value_name("PATH")
            .action(ArgAction::Append)
            .help("Same as MODEL, for process managers that pass only flags");
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("The configuration file; `sconce config --template` prints one with every key");
        let flags = keys().iter().map(|key| {
            let arg = Arg::new(key.name.as_str()).long(key.flag.as_str()).help_heading(key.section.as_str());
            let arg = arg.value_name(match &key.default {
                Value::Boolean(_) => "BOOL",
                Value::Integer(_) | Value::Float(_) => "N",
                Value::Array(_) => "LIST",
                Value::String(_) | Value::Datetime(_) | Value::Table(_) => "TEXT",
            });
            let help = key.comment.trim_end_matches('.').to_owned();
            match &key.default {
                Value::Boolean(_) => {
                    let arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
                    arg.hide_possible_values(true).value_parser(["true", "false"]).help(help)
                }
                Value::Integer(0) => arg.help(help),
                Value::String(text) if text.is_empty() => arg.help(help),
                Value::Array(items) if items.is_empty() => arg.help(help),
                Value::String(text) => arg.help(format!("{help} [default: {text}]")),
                other @ (Value::Integer(_)
                | Value::Float(_)
                | Value::Datetime(_)
                | Value::Array(_)
                | Value::Table(_)) => arg.help(format!("{help} [default: {other}]")),
            }
        });
        command.arg(models).arg(model).arg(config).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args(command)
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags, clap::Error> {
        let value_of = |name: &str| {
            let is_set = matches.value_source(name) == Some(ValueSource::CommandLine);
            let raw = if is_set { matches.get_raw(name) } else { None };
            raw.and_then(|mut values| values.next_back()).map(|value| value.to_string_lossy().into_owned())
        };
        let values = keys().iter().filter_map(|key| value_of(&key.name).map(|text| (key.name.clone(), text)));
        Ok(Flags {
            models: ["models", "model"]
                .iter()
                .flat_map(|name| matches.get_many(name).into_iter().flatten().cloned())
                .collect(),
            config: matches.get_one("config").cloned(),
            values: values.collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Flags::from_arg_matches(matches)?;
        Ok(())
    }
}
