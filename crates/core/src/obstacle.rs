//! Why a placement can't be used: a stable code, the observed values, and a remedy.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::card::Format;
use crate::device::{Device, DeviceKind};
use crate::placement::{EngineId, Placement};
use crate::remedy::Remedy;

/// Why a placement can't be used. As JSON it carries `code`, its fields, `message` and `remedy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "code", rename_all = "snake_case")]
pub enum Obstacle {
    /// This build does not contain what the placement needs.
    NotBuilt {
        /// Whether the engine is missing, or its support for a device.
        part: BuildPart,
        /// Description of the missing part.
        what: String,
        /// The Cargo feature that enables it, if this version has one.
        feature: Option<String>,
    },
    /// The model has no weights that the engine reads.
    NoWeights {
        /// The format that is missing.
        format: Format,
    },
    /// A shared library was not found.
    LibraryMissing {
        /// Its name.
        library: String,
        /// Searched locations.
        searched: Vec<String>,
    },
    /// A shared library is too old.
    LibraryTooOld {
        /// Its path.
        library: String,
        /// Its version.
        found: String,
        /// The minimum version.
        needed: String,
    },
    /// ONNX Runtime could not register the device's execution provider; it would have fallen back to the CPU silently.
    ProviderFailed {
        /// The execution provider.
        provider: String,
        /// The library's error message.
        reason: String,
    },
    /// The machine does not have the device.
    NoSuchDevice {
        /// The device.
        device: Device,
        /// What the detection found instead.
        found: String,
    },
    /// The driver is too old.
    DriverTooOld {
        /// Installed version.
        found: String,
        /// Minimum version.
        needed: String,
    },
    /// No family describes the architecture.
    UnknownArchitecture {
        /// The model's architecture.
        architecture: String,
        /// Known architectures.
        known: Vec<String>,
        /// The most similar known architecture.
        nearest: String,
        /// Config keys that the most similar architecture does not support, or lacks.
        missing: Vec<String>,
    },
    /// The device lacks an operation that the model needs.
    OpMissing {
        /// The operation.
        op: String,
        /// The engine's error message.
        reason: String,
    },
    /// An operation gives wrong values.
    OpWrong {
        /// The operation.
        op: String,
        /// The tested shape.
        shape: Vec<usize>,
        /// Distance from the reference.
        error: Distance,
        /// Tolerance.
        tolerance: f64,
    },
    /// The twin or the model itself gives wrong values.
    ModelWrong {
        /// The probe case.
        case: String,
        /// Distance from the reference.
        error: Distance,
        /// Tolerance.
        tolerance: f64,
    },
    /// The prover process died.
    Crashed {
        /// The probe case.
        case: String,
        /// Signal or exit code.
        cause: String,
    },
    /// The prover process was killed from outside, as by the OOM killer.
    Killed {
        /// The probe case.
        case: String,
        /// Signal, and the last line of standard error.
        cause: String,
    },
    /// The probe timed out.
    TimedOut {
        /// The probe case.
        case: String,
        /// The timeout.
        seconds: f64,
    },
    /// Not enough memory.
    DoesNotFit {
        /// Bytes needed, if known.
        need: Option<u64>,
        /// Bytes available, if known.
        have: Option<u64>,
    },
    /// Another placement is faster: a note on a fallback, not a refusal.
    Slower {
        /// The faster placement.
        than: Placement,
        /// Its speedup.
        ratio: f64,
    },
    /// Loading failed.
    LoadFailed {
        /// The engine's error message.
        reason: String,
    },
    /// The placement was quarantined while serving.
    Quarantined {
        /// Why.
        reason: String,
    },
    /// The SHA-256 of a model file differs from the recorded one.
    ContentChanged {
        /// The file.
        file: String,
    },
}

/// A part of the software that a build may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildPart {
    /// The engine, on all devices of a kind: no hardware would help.
    Engine,
    /// The engine's support for a device that the machine may have.
    Device,
}

/// The JSON form of an obstacle: its fields, its message and its remedy as text.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten, with = "Obstacle")]
    obstacle: &'a Obstacle,
    message: String,
    remedy: String,
}

impl Serialize for Obstacle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (message, remedy) = (self.to_string(), self.remedy().to_string());
        Described { obstacle: self, message, remedy }.serialize(serializer)
    }
}

/// Ignores `message` and `remedy`, which follow from the other fields.
impl<'de> Deserialize<'de> for Obstacle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Obstacle, D::Error> {
        Obstacle::deserialize(deserializer)
    }
}

/// Distance of a result from its reference: `|a-b|² / 2|b|²`, which is `1 - cos` for vectors of equal norm and grows
/// with a difference of norms. A result that is not finite has no distance and is within no tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distance(pub Option<f64>);

impl Distance {
    /// Distance of equal vectors.
    pub const ZERO: Distance = Distance(Some(0.0));

    /// Whether the distance is at most `tolerance`; never for a result that is not finite.
    pub fn within(self, tolerance: f64) -> bool {
        self.0.is_some_and(|distance| distance <= tolerance)
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(0.0) => f.pad("0"),
            Some(distance) => f.pad(&format!("{distance:.1e}")),
            None => f.pad("not finite"),
        }
    }
}

impl Obstacle {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Obstacle::NotBuilt { .. } => "not_built",
            Obstacle::NoWeights { .. } => "no_weights",
            Obstacle::LibraryMissing { .. } => "library_missing",
            Obstacle::LibraryTooOld { .. } => "library_too_old",
            Obstacle::ProviderFailed { .. } => "provider_failed",
            Obstacle::NoSuchDevice { .. } => "no_such_device",
            Obstacle::DriverTooOld { .. } => "driver_too_old",
            Obstacle::UnknownArchitecture { .. } => "unknown_architecture",
            Obstacle::OpMissing { .. } => "op_missing",
            Obstacle::OpWrong { .. } => "op_wrong",
            Obstacle::ModelWrong { .. } => "model_wrong",
            Obstacle::Crashed { .. } => "crashed",
            Obstacle::Killed { .. } => "killed",
            Obstacle::TimedOut { .. } => "timed_out",
            Obstacle::DoesNotFit { .. } => "does_not_fit",
            Obstacle::Slower { .. } => "slower",
            Obstacle::LoadFailed { .. } => "load_failed",
            Obstacle::Quarantined { .. } => "quarantined",
            Obstacle::ContentChanged { .. } => "content_changed",
        }
    }

    /// Whether the next attempt may succeed although nothing changed. Transient obstacles are retried with backoff.
    pub fn is_transient(&self) -> bool {
        matches!(self, Obstacle::Killed { .. } | Obstacle::TimedOut { .. })
    }

    /// Whether the placement failed when it ran. Obstacles of the build, the machine or the model's files are known
    /// beforehand.
    pub fn is_failure(&self) -> bool {
        match self {
            Obstacle::OpMissing { .. }
            | Obstacle::OpWrong { .. }
            | Obstacle::ModelWrong { .. }
            | Obstacle::Crashed { .. }
            | Obstacle::Killed { .. }
            | Obstacle::TimedOut { .. }
            | Obstacle::DoesNotFit { .. }
            | Obstacle::ProviderFailed { .. }
            | Obstacle::LoadFailed { .. }
            | Obstacle::Quarantined { .. }
            | Obstacle::ContentChanged { .. } => true,
            Obstacle::NotBuilt { .. }
            | Obstacle::NoWeights { .. }
            | Obstacle::LibraryMissing { .. }
            | Obstacle::LibraryTooOld { .. }
            | Obstacle::NoSuchDevice { .. }
            | Obstacle::DriverTooOld { .. }
            | Obstacle::UnknownArchitecture { .. }
            | Obstacle::Slower { .. } => false,
        }
    }

    /// What would remove the obstacle.
    pub fn remedy(&self) -> Remedy {
        match self {
            Obstacle::NotBuilt { feature: Some(feature), .. } => {
                Remedy::EnableFeature { feature: feature.clone() }
            }
            Obstacle::NotBuilt { feature: None, .. } => Remedy::NotInThisVersion,
            Obstacle::NoWeights { format } => Remedy::AddWeights { format: *format },
            Obstacle::LibraryMissing { library, .. } => package(library, None, false, Some("ORT_DYLIB_PATH")),
            Obstacle::LibraryTooOld { .. } => package("onnxruntime", None, true, Some("ORT_DYLIB_PATH")),
            Obstacle::ProviderFailed { provider, .. } if provider.starts_with("CUDA") => {
                package("onnxruntime-gpu", Some("NVIDIA GPUs"), false, None)
            }
            Obstacle::ProviderFailed { provider, .. } => {
                Remedy::InstallProvider { provider: provider.clone() }
            }
            Obstacle::NoSuchDevice { device, .. } => match device.kind() {
                DeviceKind::Metal => Remedy::UseMac,
                DeviceKind::Cuda => Remedy::InstallDriver,
                DeviceKind::Cpu => Remedy::Nothing,
            },
            Obstacle::DriverTooOld { needed, .. } => Remedy::UpgradeDriver { needed: needed.clone() },
            Obstacle::UnknownArchitecture { known, nearest, missing, .. } => Remedy::UnknownArchitecture {
                known: known.clone(),
                nearest: nearest.clone(),
                missing: missing.clone(),
            },
            Obstacle::OpMissing { reason, .. } if lacks_device_feature(reason) => Remedy::FixManifest,
            Obstacle::OpMissing { .. } | Obstacle::OpWrong { .. } | Obstacle::ModelWrong { .. } => {
                Remedy::ReportEvidence
            }
            Obstacle::Crashed { .. } => Remedy::UpdateSystem,
            Obstacle::Killed { .. } | Obstacle::TimedOut { .. } => Remedy::RetryLater,
            Obstacle::DoesNotFit { .. } => Remedy::UseLessMemory,
            Obstacle::Slower { than, .. } => Remedy::UseFaster { placement: than.clone() },
            Obstacle::LoadFailed { .. } => Remedy::CheckFolder,
            Obstacle::Quarantined { .. } => Remedy::Restart,
            Obstacle::ContentChanged { .. } => Remedy::RestoreFile,
        }
    }

    /// The obstacle for an engine that no build of this version contains.
    pub fn engine_not_in_this_version(engine: EngineId) -> Obstacle {
        Obstacle::NotBuilt {
            part: BuildPart::Engine,
            what: format!("the {engine} engine, which is not in this version"),
            feature: None,
        }
    }
}

fn package(package: &str, purpose: Option<&str>, upgrade: bool, variable: Option<&str>) -> Remedy {
    Remedy::InstallPackage {
        package: package.to_owned(),
        purpose: purpose.map(str::to_owned),
        upgrade,
        variable: variable.map(str::to_owned),
    }
}

/// Whether Candle reports that candle-core has a device feature and the crate of the op does not.
fn lacks_device_feature(reason: &str) -> bool {
    reason.contains("no metal implementation") || reason.contains("no cuda implementation")
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotBuilt { what, .. } => write!(f, "this build lacks {what}"),
            Obstacle::NoWeights { format } => write!(f, "the model has no {format} weights"),
            Obstacle::LibraryMissing { library, searched } => {
                write!(f, "`{library}` was not found; looked in: {}", searched.join(", "))
            }
            Obstacle::LibraryTooOld { library, found, needed } => {
                write!(f, "`{library}` is version {found}, needed is {needed} or newer")
            }
            Obstacle::ProviderFailed { provider, reason } => {
                write!(f, "`{provider}` could not be registered: {reason}")
            }
            Obstacle::NoSuchDevice { device, found } => write!(f, "no device `{device}`: {found}"),
            Obstacle::DriverTooOld { found, needed } => {
                write!(f, "the driver is too old: found {found}, needed {needed}")
            }
            Obstacle::UnknownArchitecture { architecture, .. } => {
                write!(f, "no description of the architecture `{architecture}`")
            }
            Obstacle::OpMissing { op, reason } => write!(f, "`{op}` is missing: {reason}"),
            Obstacle::OpWrong { op, shape, error, tolerance } => {
                write!(f, "`{op}` at {shape:?} is wrong: {error}, allowed {tolerance:.0e}")
            }
            Obstacle::ModelWrong { case, error, tolerance } => {
                write!(f, "wrong at {case}: {error}, allowed {tolerance:.0e}")
            }
            Obstacle::Crashed { case, cause } => write!(f, "crashed at {case}: {cause}"),
            Obstacle::Killed { case, cause } => write!(f, "killed at {case}: {cause}"),
            Obstacle::TimedOut { case, seconds } => write!(f, "no answer at {case} in {seconds:.1} s"),
            Obstacle::DoesNotFit { need, have } => {
                write!(f, "does not fit in memory")?;
                match (need, have) {
                    (Some(need), Some(have)) => write!(f, ": needs {}, has {}", bytes(*need), bytes(*have)),
                    (Some(need), None) => write!(f, ": needs {}", bytes(*need)),
                    (None, _) => Ok(()),
                }
            }
            Obstacle::Slower { than, ratio } => {
                write!(f, "{ratio:.1}x slower than {}/{}/{}", than.engine, than.device, than.dtype)
            }
            Obstacle::LoadFailed { reason } => write!(f, "could not be loaded: {reason}"),
            Obstacle::Quarantined { reason } => write!(f, "taken out of service: {reason}"),
            Obstacle::ContentChanged { file } => {
                write!(f, "the content of `{file}` differs from the SHA-256 under which it is known")
            }
        }
    }
}

/// Formats a number of bytes with a unit.
pub fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.0} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.0} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_never_near() {
        assert!(!Distance(None).within(f64::INFINITY));
        assert!(Distance::ZERO.within(0.0));
    }

    #[test]
    fn an_obstacle_survives_json_with_its_code() {
        let obstacle =
            Obstacle::ModelWrong { case: "length 32".into(), error: Distance(None), tolerance: 1e-3 };
        let json = serde_json::to_value(&obstacle).expect("serializes");
        assert_eq!(json["code"], obstacle.code());
        assert_eq!(serde_json::from_value::<Obstacle>(json).expect("reads back"), obstacle);
    }

    #[test]
    fn an_obstacle_carries_its_message_and_its_remedy_and_is_read_without_them() {
        let obstacle = Obstacle::NoSuchDevice { device: Device::Metal(0), found: "this is linux".to_owned() };
        let mut json = serde_json::to_value(&obstacle).expect("serializes");
        assert_eq!(json["message"], "no device `metal:0`: this is linux");
        assert_eq!(json["remedy"], obstacle.remedy().to_string());
        let fields = json.as_object_mut().expect("an object");
        fields.retain(|field, _| field != "message" && field != "remedy");
        assert_eq!(serde_json::from_value::<Obstacle>(json).expect("evidence of before"), obstacle);
    }
}
