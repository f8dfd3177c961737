//! Why a placement can't be used, as a value: a stable code, what was seen, and what would help.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::card::Format;
use crate::device::{Device, DeviceKind};
use crate::placement::{EngineId, Placement};

/// Why a placement can't be used. As JSON it carries `code`, its fields, `message` and `remedy`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "code", rename_all = "snake_case")]
pub enum Obstacle {
    /// This build does not contain what the placement needs.
    NotBuilt {
        /// What is missing, in words.
        what: String,
        /// The feature that brings it, where this version has one.
        feature: Option<String>,
    },
    /// The model has no weights that the engine reads.
    NoWeights {
        /// The format that is missing.
        format: Format,
    },
    /// A library that is looked for at run time was not found.
    LibraryMissing {
        /// Its name.
        library: String,
        /// Where it was looked for.
        looked: Vec<String>,
    },
    /// A library was found and is too old.
    LibraryTooOld {
        /// Where it lies.
        library: String,
        /// Its version.
        found: String,
        /// The least version needed.
        needed: String,
    },
    /// A library could not be asked to use the device: it would have run on the processor without a word.
    ProviderFailed {
        /// What would drive the device there.
        provider: String,
        /// What the library said.
        says: String,
    },
    /// The machine has no such device.
    NoSuchDevice {
        /// The device that was looked for.
        device: Device,
        /// What was found instead, and where it was looked for.
        found: String,
    },
    /// The driver is there and too old.
    DriverTooOld {
        /// The version found.
        found: String,
        /// The version needed.
        needed: String,
    },
    /// No description of this architecture.
    UnknownArchitecture {
        /// What the model calls itself.
        architecture: String,
        /// What is known.
        known: Vec<String>,
        /// The known one that comes nearest.
        nearest: String,
        /// What of the model's config the nearest has no place for, or lacks.
        missing: Vec<String>,
    },
    /// The device lacks an operation that the model needs.
    OpMissing {
        /// The operation.
        op: String,
        /// What the engine said.
        says: String,
    },
    /// One operation gives wrong numbers.
    OpWrong {
        /// The operation.
        op: String,
        /// The shape it was tried at.
        shape: Vec<usize>,
        /// How far off it was.
        error: Distance,
        /// How far off it may be.
        tolerance: f64,
    },
    /// A small model of this architecture, or the model itself, gives wrong numbers.
    ModelWrong {
        /// What was tried.
        case: String,
        /// How far off it was.
        error: Distance,
        /// How far off it may be.
        tolerance: f64,
    },
    /// The process that tried it died.
    Crashed {
        /// What it was doing.
        case: String,
        /// How it died: a signal or an exit code.
        how: String,
    },
    /// The process that tried it was killed from outside, as the system does when memory runs out.
    Killed {
        /// What it was doing.
        case: String,
        /// The signal, and the last line of its standard error.
        how: String,
    },
    /// It did not answer in time.
    TimedOut {
        /// What it was doing.
        case: String,
        /// How long it was given.
        seconds: f64,
    },
    /// Not enough memory.
    DoesNotFit {
        /// Bytes needed, where known.
        need: Option<u64>,
        /// Bytes there, where known.
        have: Option<u64>,
    },
    /// It works, and another placement is faster: a note on a fallback, not a refusal.
    Slower {
        /// The faster one.
        than: Placement,
        /// How many times faster that one is.
        ratio: f64,
    },
    /// The weights could not be loaded.
    LoadFailed {
        /// What the engine said.
        says: String,
    },
    /// It was taken out of service while running.
    Quarantined {
        /// What it did.
        why: String,
    },
    /// A file of the model does not have the SHA-256 under which it is known.
    ContentChanged {
        /// The file.
        file: String,
    },
}

/// An obstacle as people and programs read it: beside its fields the same words that the command prints.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten, with = "Obstacle")]
    obstacle: &'a Obstacle,
    message: String,
    remedy: String,
}

impl Serialize for Obstacle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (message, remedy) = (self.to_string(), self.remedy());
        Described { obstacle: self, message, remedy }.serialize(serializer)
    }
}

/// `message` and `remedy` follow from the fields and are not read.
impl<'de> Deserialize<'de> for Obstacle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Obstacle, D::Error> {
        Obstacle::deserialize(deserializer)
    }
}

/// How far a result lies from its reference: `|a-b|² / 2|b|²`, which is 1-cos for vectors of equal
/// length and sees a wrong length too. A result that is not finite has no distance, and is never near.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Distance(pub Option<f64>);

impl Distance {
    /// Nothing lies between the two.
    pub const ZERO: Distance = Distance(Some(0.0));

    /// Whether it lies within `tolerance`; a result that is not finite never does.
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
    /// The stable name of this kind of obstacle.
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

    /// Whether the next attempt may end otherwise although nothing changed: such a finding is tried again, with
    /// backoff.
    pub fn is_transient(&self) -> bool {
        matches!(self, Obstacle::Killed { .. } | Obstacle::TimedOut { .. })
    }

    /// Whether it was found by running the placement. What the build, the machine or the model's files lack is known
    /// without that.
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

    /// What would change it: a command, a line to write, or the words that there is nothing.
    pub fn remedy(&self) -> String {
        match self {
            Obstacle::NotBuilt { feature: Some(feature), .. } => {
                format!("build with the feature: `cargo install --path crates/cli --features {feature}`")
            }
            Obstacle::NotBuilt { feature: None, .. } => {
                "none: no build of this version contains it".to_owned()
            }
            Obstacle::NoWeights { format } => {
                format!("put {format} weights of the model at `{}`", format.usual_name())
            }
            Obstacle::LibraryMissing { library, .. } => {
                format!("`pip install {library}`, or set ORT_DYLIB_PATH to the library's file")
            }
            Obstacle::LibraryTooOld { .. } => {
                "`pip install --upgrade onnxruntime`, or set ORT_DYLIB_PATH to a newer one".to_owned()
            }
            Obstacle::ProviderFailed { provider, .. } if provider.starts_with("CUDA") => {
                "install the build for NVIDIA GPUs: `pip install onnxruntime-gpu`".to_owned()
            }
            Obstacle::ProviderFailed { provider, .. } => {
                format!("install a build of ONNX Runtime that has `{provider}`")
            }
            Obstacle::NoSuchDevice { device, .. } => match device.kind() {
                DeviceKind::Metal => "none on this machine: Metal needs a Mac".to_owned(),
                DeviceKind::Cuda => {
                    "if there is an NVIDIA GPU, install its driver until `nvidia-smi` lists it".to_owned()
                }
                DeviceKind::Cpu => "none".to_owned(),
            },
            Obstacle::DriverTooOld { needed, .. } => format!("install driver {needed} or newer"),
            Obstacle::UnknownArchitecture { known, nearest, missing, .. } => {
                let missing = if missing.is_empty() {
                    format!("its config has nothing that `{nearest}` does not know")
                } else {
                    format!("for it, this is missing: {}", missing.join(", "))
                };
                format!(
                    "none in this version: the nearest known is `{nearest}`; {missing}. All that are known: {}",
                    known.join(", ")
                )
            }
            Obstacle::OpMissing { says, .. } if is_the_feature_trap(says) => {
                "the kernel exists but its crate was built without the feature: \
                 `sconce doctor --manifest .` prints the line to change"
                    .to_owned()
            }
            Obstacle::OpMissing { .. } | Obstacle::OpWrong { .. } | Obstacle::ModelWrong { .. } => {
                "none here: the next placement serves; `sconce doctor --json` is the evidence to report"
                    .to_owned()
            }
            Obstacle::Crashed { .. } => {
                "update the driver or the system, then try it again: `sconce doctor --fresh`".to_owned()
            }
            Obstacle::Killed { .. } | Obstacle::TimedOut { .. } => {
                "a later start tries it again; to try everything again now: `sconce doctor --fresh`"
                    .to_owned()
            }
            Obstacle::DoesNotFit { .. } => {
                "choose half the bytes with `--dtype f16`, a smaller model, or `--device cpu`".to_owned()
            }
            Obstacle::Slower { than, .. } => {
                format!("none needed: `--device {} --dtype {}` is the faster one", than.device, than.dtype)
            }
            Obstacle::LoadFailed { .. } => "check the folder with `sconce plan MODEL --full`".to_owned(),
            Obstacle::Quarantined { .. } => {
                "start anew to have it proved again: `sconce doctor --fresh`".to_owned()
            }
            Obstacle::ContentChanged { .. } => {
                "restore the file; `sconce plan MODEL --full` hashes and proves it as it is now".to_owned()
            }
        }
    }

    /// The engine that no build of this version contains.
    pub fn engine_not_in_this_version(engine: EngineId) -> Obstacle {
        Obstacle::NotBuilt {
            what: format!("the {engine} engine, which is not in this version"),
            feature: None,
        }
    }
}

/// Candle's words when candle-core has a device feature and the crate of the op does not.
fn is_the_feature_trap(says: &str) -> bool {
    says.contains("no metal implementation") || says.contains("no cuda implementation")
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotBuilt { what, .. } => write!(f, "this build lacks {what}"),
            Obstacle::NoWeights { format } => write!(f, "the model has no {format} weights"),
            Obstacle::LibraryMissing { library, looked } => {
                write!(f, "`{library}` was not found; looked in: {}", looked.join(", "))
            }
            Obstacle::LibraryTooOld { library, found, needed } => {
                write!(f, "`{library}` is version {found}, needed is {needed} or newer")
            }
            Obstacle::ProviderFailed { provider, says } => {
                write!(f, "`{provider}` could not be registered: {says}")
            }
            Obstacle::NoSuchDevice { device, found } => write!(f, "no device `{device}`: {found}"),
            Obstacle::DriverTooOld { found, needed } => {
                write!(f, "the driver is too old: found {found}, needed {needed}")
            }
            Obstacle::UnknownArchitecture { architecture, .. } => {
                write!(f, "no description of the architecture `{architecture}`")
            }
            Obstacle::OpMissing { op, says } => write!(f, "`{op}` is missing: {says}"),
            Obstacle::OpWrong { op, shape, error, tolerance } => {
                write!(f, "`{op}` at {shape:?} is wrong: {error}, allowed {tolerance:.0e}")
            }
            Obstacle::ModelWrong { case, error, tolerance } => {
                write!(f, "wrong at {case}: {error}, allowed {tolerance:.0e}")
            }
            Obstacle::Crashed { case, how } => write!(f, "crashed at {case}: {how}"),
            Obstacle::Killed { case, how } => write!(f, "killed at {case}: {how}"),
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
            Obstacle::LoadFailed { says } => write!(f, "could not be loaded: {says}"),
            Obstacle::Quarantined { why } => write!(f, "taken out of service: {why}"),
            Obstacle::ContentChanged { file } => {
                write!(f, "the content of `{file}` differs from the SHA-256 under which it is known")
            }
        }
    }
}

/// A count of bytes as people read it.
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
        assert_eq!(json["remedy"], obstacle.remedy());
        let fields = json.as_object_mut().expect("an object");
        fields.retain(|field, _| field != "message" && field != "remedy");
        assert_eq!(serde_json::from_value::<Obstacle>(json).expect("evidence of before"), obstacle);
    }
}
