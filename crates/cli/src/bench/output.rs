//! The output of a benchmark: a plot, and JSON or text.

use std::process::ExitCode;

use serde_json::Value;

use super::plot::{Figure, Plot};
use crate::arguments::Bench;
use crate::terminal::{print, print_json};

/// Draws the figure of a benchmark if asked to, and prints its report. The exit code tells whether everything was measured.
pub(super) fn show(
    arguments: &Bench,
    plot: Option<Plot>,
    figure: impl FnOnce() -> Figure,
    json: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
    is_complete: bool,
) -> anyhow::Result<ExitCode> {
    if let Some(plot) = plot {
        plot.draw(&figure())?;
    }
    if arguments.json {
        print_json(&json())?;
    } else {
        print(&text())?;
    }
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
