//! Errors of a diagnosis: missing or unreadable manifests, and failures of cargo.

use std::io;
use std::path::PathBuf;

const NAME_A_PROJECT: &str = "hint: name the folder of a Cargo project, or its `Cargo.toml`";

/// Why a project could not be diagnosed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not exist.
    #[error("no such file or folder: `{}`\n{NAME_A_PROJECT}", .0.display())]
    NotFound(PathBuf),
    /// The folder has no manifest.
    #[error("no `Cargo.toml` in: `{}`\n{NAME_A_PROJECT}", .0.display())]
    NoManifest(PathBuf),
    /// The file is not a manifest.
    #[error("not a `Cargo.toml`: `{}`\n{NAME_A_PROJECT}", .0.display())]
    NotAManifest(PathBuf),
    /// The path could not be opened.
    #[error("could not open: `{}`", .0.display())]
    Open(PathBuf, #[source] io::Error),
    /// A manifest could not be read.
    #[error("could not read: `{}`", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A manifest is not valid TOML.
    #[error("could not parse the manifest: `{}`", .0.display())]
    Parse(PathBuf, #[source] toml::de::Error),
    /// The overlay of the project could not be created.
    #[error("could not create a temporary overlay of: `{}`", .0.display())]
    Overlay(PathBuf, #[source] io::Error),
    /// An edited manifest could not be written to the overlay.
    #[error("could not write the edited manifest to the overlay: `{}`", .0.display())]
    WriteOverlay(PathBuf, #[source] io::Error),
    /// `cargo` is not on `PATH`.
    #[error(
        "could not find `cargo`\nhint: install Rust (https://rustup.rs), or put the folder of `cargo` on `PATH`"
    )]
    CargoNotFound,
    /// `cargo` could not be started.
    #[error("could not run `cargo`")]
    CargoStart(#[source] io::Error),
    /// `cargo` failed, with this output.
    #[error("cargo reported:\n{0}")]
    CargoFailed(String),
    /// `cargo -vV` printed no host triple.
    #[error("`cargo -vV` names no host\nhint: pass the target triple with `--target`")]
    NoHost,
    /// The dependency tree of a target could not be resolved.
    #[error("could not resolve the dependencies for: `{0}`")]
    Resolve(String, #[source] Box<Error>),
    /// A line of `cargo tree` has an unknown format.
    #[error("unknown line in the output of `cargo tree`: `{0}`")]
    TreeLine(String),
    /// A line of `cargo tree` is more than one level below the line before it.
    #[error("a line of `cargo tree` skips a depth: `{0}`")]
    TreeDepth(String),
}
