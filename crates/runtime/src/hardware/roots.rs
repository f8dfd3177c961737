//! Folders of system files on Linux.

use std::path::PathBuf;

/// WSL's folder of NVIDIA tools, which is only in the `PATH` of login shells.
const WSL_TOOLS: &str = "/usr/lib/wsl/lib";

/// Folders of system files; tests use their own.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    /// `/proc`.
    pub(super) proc: PathBuf,
    /// `/sys`.
    pub(super) sys: PathBuf,
    /// `/dev`.
    pub(super) dev: PathBuf,
    /// Search path of tools.
    pub(super) tools: Vec<PathBuf>,
}

impl Default for Roots {
    fn default() -> Roots {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // A relative folder would let the owner of the working directory choose the executable.
        let mut tools: Vec<PathBuf> =
            std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
        tools.push(WSL_TOOLS.into());
        Roots { proc: "/proc".into(), sys: "/sys".into(), dev: "/dev".into(), tools }
    }
}
