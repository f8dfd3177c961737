//! The `sconce` command-line interface, as a library: the binary and the Python package run it.

mod arguments;
mod bench;
mod bundle;
mod chat;
mod classify;
mod completions;
mod config;
mod doctor;
mod embed;
mod generate;
mod http_client;
mod input;
mod inspect;
mod model_name;
mod models;
mod npy;
mod open_model;
mod output_file;
mod parent;
mod plan;
mod pool;
mod pool_models;
mod prompt;
mod pull;
mod recommended;
mod reference;
mod remove;
mod rerank;
mod serve;
mod server_spec;
mod show_config;
mod similarity;
mod summary;
mod terminal;
mod top;
mod verify;

use std::ffi::OsString;
use std::iter;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};

pub use plan::PlanPage;

/// Runs the command with these arguments, without the name of the program. Call [`sconce::init`] or
/// [`sconce::init_as`] first.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(iter::once(OsString::from("sconce")).chain(arguments)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and the version, too. A closed pipe is ignored.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let done = match &arguments.command {
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Embed(arguments) => embed::run(arguments),
        Command::Rerank(arguments) => rerank::run(arguments),
        Command::Classify(arguments) => classify::run(arguments),
        Command::Similarity(arguments) => similarity::run(arguments),
        Command::Generate(arguments) => generate::run(arguments),
        Command::Chat(arguments) => chat::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Config(arguments) => show_config::run(arguments),
        Command::Models(arguments) => models::run(arguments),
        Command::Pull(arguments) => pull::run(arguments),
        Command::Rm(arguments) => remove::run(arguments),
        Command::Pool(arguments) => pool::run(&arguments.command),
        Command::Top(arguments) => top::run(arguments),
        Command::Bundle(arguments) => bundle::run(arguments),
        Command::Completions(arguments) => completions::completions(arguments),
        Command::Man(arguments) => completions::man(arguments),
    };
    match done {
        Ok(code) => code,
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::print_error(&error);
            ExitCode::from(2)
        }
    }
}
