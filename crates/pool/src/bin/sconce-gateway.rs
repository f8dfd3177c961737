//! `sconce-gateway`: one address for the workers of a pool, as a small binary.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use sconce_pool::gateway::{Arguments, run};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = arguments.settings().and_then(|settings| {
        let announcement = arguments.announcement();
        run(settings, |address| print_line(&announcement(address)))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_line(&arguments.error(&error));
            ExitCode::from(2)
        }
    }
}

/// Writes a line to standard error, which may be closed.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
