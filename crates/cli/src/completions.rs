//! `sconce completions` and `sconce man`: shell completions and man pages.

use std::fs;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use sconce::catalogue;

use crate::arguments::{Arguments, Completions, Man};
use crate::terminal::print;

pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "sconce", &mut script);
    let script = String::from_utf8(script)?;
    let names: Vec<&str> = catalogue::models().iter().map(|model| model.name.as_str()).collect();
    let names = names.join(" ");
    if arguments.shell == Shell::Zsh {
        print(&names_or_files(&script, &names))?;
    } else if arguments.shell == Shell::Fish {
        print(&(script + &fish_names(&names)))?;
    } else {
        print(&script)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Completes files beside the names of models: zsh completes either by itself.
fn names_or_files(script: &str, names: &str) -> String {
    let function = format!(
        "_sconce_models() {{\n    _alternative 'models:model:({names})' 'files:file:_files'\n}}\n\n_sconce() {{"
    );
    script.replace(&format!("({names})"), "_sconce_models").replacen("_sconce() {", &function, 1)
}

/// Completes the names of models in fish, for which `clap_complete` completes flags only.
fn fish_names(names: &str) -> String {
    let command = Arguments::command();
    let takes_model = |command: &&Command| {
        let mut positionals = command.get_positionals();
        positionals.any(|arg| {
            arg.get_value_parser()
                .possible_values()
                .is_some_and(|mut all| all.next().is_some_and(|first| names.starts_with(first.get_name())))
        })
    };
    let commands: Vec<&str> = command.get_subcommands().filter(takes_model).map(Command::get_name).collect();
    format!("complete -c sconce -n \"__fish_seen_subcommand_from {}\" -a \"{names}\"\n", commands.join(" "))
}

pub(crate) fn man(arguments: &Man) -> anyhow::Result<ExitCode> {
    let folder = &arguments.folder;
    let failed = || format!("could not write man pages to: `{}`", folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(Arguments::command(), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
