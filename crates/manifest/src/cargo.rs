//! Runs the user's `cargo`: workspace root, host triple, and dependency tree.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::overlay::Overlay;
use crate::request::Request;
use crate::tree::{FORMAT, Tree};

/// The manifest of the workspace root. A package outside of a workspace is its own root.
pub(crate) fn workspace_of(manifest: &Path) -> Result<PathBuf, Error> {
    let mut command = Command::new("cargo");
    command
        .args(["locate-project", "--workspace", "--message-format", "plain", "--manifest-path"])
        .arg(manifest);
    command.current_dir(manifest.parent().unwrap_or(manifest));
    Ok(PathBuf::from(output_of(command, &|text| text.to_owned())?.trim()))
}

/// Cargo's host triple.
pub(crate) fn host(folder: &Path) -> Result<String, Error> {
    let mut command = Command::new("cargo");
    command.arg("-vV").current_dir(folder);
    let output = output_of(command, &|text| text.to_owned())?;
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or(Error::NoHost)?.trim().to_owned())
}

/// The dependency tree resolved for one target.
pub(crate) fn tree(
    overlay: &Overlay,
    manifest: &Path,
    target: &str,
    request: &Request,
) -> Result<Tree, Error> {
    let copy = overlay.path(manifest);
    let mut command = Command::new("cargo");
    command.arg("tree").args(FORMAT).args(["--target", target]).arg("--manifest-path").arg(&copy);
    for features in &request.features {
        command.args(["--features", features]);
    }
    if request.all_features {
        command.arg("--all-features");
    }
    if request.no_default_features {
        command.arg("--no-default-features");
    }
    command.current_dir(copy.parent().unwrap_or(&copy));
    command.env("CARGO_TARGET_DIR", overlay.target_folder());
    let output = output_of(command, &|text| overlay.restore_paths(text))
        .map_err(|error| Error::Resolve(target.to_owned(), Box::new(error)))?;
    Tree::parse(&output)
}

/// Standard output of a successful command. `restore_paths` maps overlay paths in its output to real ones.
fn output_of(mut command: Command, restore_paths: &dyn Fn(&str) -> String) -> Result<String, Error> {
    command.env("CARGO_TERM_COLOR", "never");
    let output = command.output().map_err(|error| {
        if error.kind() == ErrorKind::NotFound { Error::CargoNotFound } else { Error::CargoStart(error) }
    })?;
    if !output.status.success() {
        let message = restore_paths(&String::from_utf8_lossy(&output.stderr));
        let start = message.find("error:").unwrap_or(0);
        return Err(Error::CargoFailed(message[start..].trim_end().to_owned()));
    }
    Ok(restore_paths(&String::from_utf8_lossy(&output.stdout)))
}
