//! What would remove an obstacle, as a value; `Display` is the one rendering of it.

use std::fmt;

use crate::card::Format;
use crate::placement::Placement;

/// What would remove an obstacle. Front ends match on it or print it; JSON carries the printed text as `remedy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Build with a Cargo feature of the command-line crate.
    EnableFeature {
        /// The feature.
        feature: String,
    },
    /// No build of this version has it.
    NotInThisVersion,
    /// Put weights of this format into the model's folder.
    AddWeights {
        /// The missing format.
        format: Format,
    },
    /// Install a Python package.
    InstallPackage {
        /// The package.
        package: String,
        /// What the package is for; none if its name says it.
        purpose: Option<String>,
        /// Whether an installed version is too old.
        upgrade: bool,
        /// The environment variable that names the library's file instead.
        variable: Option<String>,
    },
    /// Install a build of ONNX Runtime with this execution provider.
    InstallProvider {
        /// The execution provider.
        provider: String,
    },
    /// Install the NVIDIA driver.
    InstallDriver,
    /// Upgrade the driver.
    UpgradeDriver {
        /// The minimum version.
        needed: String,
    },
    /// Use a Mac: other machines have no Metal.
    UseMac,
    /// Nothing helps.
    Nothing,
    /// Nothing in this version: the architecture is unknown.
    UnknownArchitecture {
        /// Known architectures.
        known: Vec<String>,
        /// The most similar known architecture.
        nearest: String,
        /// Config keys that the most similar architecture does not support, or lacks.
        missing: Vec<String>,
    },
    /// Enable a device feature on the crate of an op in the user's own manifest.
    FixManifest,
    /// Nothing here: another placement serves. The evidence is worth a report.
    ReportEvidence,
    /// Update the driver or the system, then prove again.
    UpdateSystem,
    /// Wait for the next attempt, or prove again now.
    RetryLater,
    /// Use less memory.
    UseLessMemory,
    /// Nothing needed: another placement is faster.
    UseFaster {
        /// The faster placement.
        placement: Placement,
    },
    /// Check the model's folder.
    CheckFolder,
    /// Restart to prove the placement again.
    Restart,
    /// Restore the changed file.
    RestoreFile,
    /// Allow a wider accuracy band.
    AllowBand {
        /// The band.
        band: String,
        /// Whether f32 weights would help too, because the band is unknown without them.
        or_f32_weights: bool,
    },
}

impl Remedy {
    /// Whether the user can do something.
    pub fn is_actionable(&self) -> bool {
        match self {
            Remedy::NotInThisVersion
            | Remedy::UseMac
            | Remedy::Nothing
            | Remedy::UnknownArchitecture { .. }
            | Remedy::ReportEvidence
            | Remedy::UseFaster { .. } => false,
            Remedy::EnableFeature { .. }
            | Remedy::AddWeights { .. }
            | Remedy::InstallPackage { .. }
            | Remedy::InstallProvider { .. }
            | Remedy::InstallDriver
            | Remedy::UpgradeDriver { .. }
            | Remedy::FixManifest
            | Remedy::UpdateSystem
            | Remedy::RetryLater
            | Remedy::UseLessMemory
            | Remedy::CheckFolder
            | Remedy::Restart
            | Remedy::RestoreFile
            | Remedy::AllowBand { .. } => true,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::EnableFeature { feature } => {
                write!(f, "build with the feature: `cargo install --path crates/cli --features {feature}`")
            }
            Remedy::NotInThisVersion => f.write_str("none: no build of this version contains it"),
            Remedy::AddWeights { format } => {
                write!(f, "put {format} weights of the model at `{}`", format.usual_name())
            }
            Remedy::InstallPackage { package, purpose, upgrade, variable } => {
                if let Some(purpose) = purpose {
                    write!(f, "install the build for {purpose}: ")?;
                }
                write!(f, "`pip install {}{package}`", if *upgrade { "--upgrade " } else { "" })?;
                match variable {
                    Some(variable) if *upgrade => write!(f, ", or set {variable} to a newer one"),
                    Some(variable) => write!(f, ", or set {variable} to the library's file"),
                    None => Ok(()),
                }
            }
            Remedy::InstallProvider { provider } => {
                write!(f, "install a build of ONNX Runtime that has `{provider}`")
            }
            Remedy::InstallDriver => {
                f.write_str("if there is an NVIDIA GPU, install its driver until `nvidia-smi` lists it")
            }
            Remedy::UpgradeDriver { needed } => write!(f, "install driver {needed} or newer"),
            Remedy::UseMac => f.write_str("none on this machine: Metal needs a Mac"),
            Remedy::Nothing => f.write_str("none"),
            Remedy::UnknownArchitecture { known, nearest, missing } => {
                write!(f, "none in this version: the nearest known is `{nearest}`; ")?;
                if missing.is_empty() {
                    write!(f, "its config has nothing that `{nearest}` does not know")?;
                } else {
                    write!(f, "for it, this is missing: {}", missing.join(", "))?;
                }
                write!(f, ". All that are known: {}", known.join(", "))
            }
            Remedy::FixManifest => f.write_str(
                "the kernel exists but its crate was built without the feature: \
                 `sconce doctor --manifest .` prints the line to change",
            ),
            Remedy::ReportEvidence => f.write_str(
                "none here: the next placement serves; `sconce doctor --json` is the evidence to report",
            ),
            Remedy::UpdateSystem => {
                f.write_str("update the driver or the system, then try it again: `sconce doctor --fresh`")
            }
            Remedy::RetryLater => f.write_str(
                "a later start tries it again; to try everything again now: `sconce doctor --fresh`",
            ),
            Remedy::UseLessMemory => f.write_str(
                "choose a narrower `--dtype` (bf16, or int4 of a quantized file), a file with fewer bits, a smaller \
                 model, or another `--device`",
            ),
            Remedy::UseFaster { placement: Placement { device, dtype, .. } } => {
                write!(f, "none needed: `--device {device} --dtype {dtype}` is the faster one")
            }
            Remedy::CheckFolder => f.write_str("check the folder with `sconce plan MODEL --full`"),
            Remedy::Restart => f.write_str("restart to prove it again: `sconce doctor --fresh`"),
            Remedy::RestoreFile => {
                f.write_str("restore the file; `sconce plan MODEL --full` hashes and proves it as it is now")
            }
            Remedy::AllowBand { band, or_f32_weights } => {
                write!(f, "allow it with `--band {band}`")?;
                if *or_f32_weights {
                    f.write_str(", or put f32 weights of the model into its folder")?;
                }
                Ok(())
            }
        }
    }
}
