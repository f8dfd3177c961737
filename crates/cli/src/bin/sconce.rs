//! The binary `sconce`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sconce::init();
    sconce_cli::run(std::env::args_os().skip(1))
}
