//! `sconce completions` and `sconce man`: shell completions and man pages.

use std::fs;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::arguments::{Arguments, Completions, Man};
use crate::terminal::print;

pub(crate) fn completions(arguments: &Completions) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "sconce", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(arguments: &Man) -> anyhow::Result<ExitCode> {
    let folder = &arguments.folder;
    let failed = || format!("could not write man pages to: `{}`", folder.display());
    fs::create_dir_all(folder).with_context(failed)?;
    clap_mangen::generate_to(Arguments::command(), folder).with_context(failed)?;
    Ok(ExitCode::SUCCESS)
}
