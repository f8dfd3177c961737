//! Which project to diagnose, with cargo's own options for targets and features.

use std::path::PathBuf;

/// The project to diagnose.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// A `Cargo.toml`, or the folder of one.
    pub path: PathBuf,
    /// Target triple to resolve features for. Defaults to the host.
    pub target: Option<String>,
    /// As in `cargo build --features`.
    pub features: Vec<String>,
    /// As in `cargo build --all-features`.
    pub all_features: bool,
    /// As in `cargo build --no-default-features`.
    pub no_default_features: bool,
}
