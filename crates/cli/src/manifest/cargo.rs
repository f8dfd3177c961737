//! The questions put to the user's cargo.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::Request;
use super::shadow::Shadow;
use super::tree::{FORMAT, Tree};

/// The manifest of the workspace that a manifest belongs to: its own, where there is no other.
pub(super) fn workspace_of(manifest: &Path) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("cargo");
    command
        .args(["locate-project", "--workspace", "--message-format", "plain", "--manifest-path"])
        .arg(manifest);
    command.current_dir(manifest.parent().unwrap_or(manifest));
    Ok(PathBuf::from(answer(command, &|text| text.to_owned())?.trim()))
}

/// The platform that cargo builds for unless told otherwise.
pub(super) fn host(folder: &Path) -> anyhow::Result<String> {
    let mut command = Command::new("cargo");
    command.arg("-vV").current_dir(folder);
    let answer = answer(command, &|text| text.to_owned())?;
    let host = answer.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`cargo -vV` names no host\nhint: name one with `--target`")?.trim().to_owned())
}

/// The tree resolved for one target.
pub(super) fn tree(
    shadow: &Shadow,
    manifest: &Path,
    target: &str,
    request: &Request,
) -> anyhow::Result<Tree> {
    let place = shadow.path(manifest);
    let mut command = Command::new("cargo");
    command.arg("tree").args(FORMAT).args(["--target", target]).arg("--manifest-path").arg(&place);
    for features in &request.features {
        command.args(["--features", features]);
    }
    if request.all_features {
        command.arg("--all-features");
    }
    if request.no_default_features {
        command.arg("--no-default-features");
    }
    command.current_dir(place.parent().unwrap_or(&place));
    command.env("CARGO_TARGET_DIR", shadow.target_folder());
    let output = answer(command, &|text| shadow.real(text))
        .with_context(|| format!("could not read the dependencies for: `{target}`"))?;
    Tree::parse(&output)
}

fn answer(mut command: Command, real: &dyn Fn(&str) -> String) -> anyhow::Result<String> {
    command.env("CARGO_TERM_COLOR", "never");
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "could not find `cargo`\nhint: install Rust (https://rustup.rs), or put the folder of `cargo` on `PATH`"
        ),
        Err(error) => return Err(error).context("could not run `cargo`"),
    };
    if !output.status.success() {
        let told = real(&String::from_utf8_lossy(&output.stderr));
        let start = told.find("error:").unwrap_or(0);
        bail!("cargo said:\n{}", told[start..].trim_end());
    }
    Ok(real(&String::from_utf8_lossy(&output.stdout)))
}
