//! One cell of the grid engine × device × weights × dtype: the thing that is chosen.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::device::{Device, UnknownName};

/// The number format that a placement computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits: the reference.
    F32,
    /// IEEE half precision, 16 bits.
    F16,
    /// The upper half of an f32, 16 bits.
    Bf16,
}

impl Dtype {
    /// All of them, widest first.
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// Bytes that one number takes.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
        })
    }
}

impl FromStr for Dtype {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = Dtype::ALL.into_iter().find(|dtype| dtype.to_string() == text);
        known.ok_or_else(|| UnknownName { what: "dtype", name: text.to_owned(), known: "f32, f16, bf16" })
    }
}

/// A way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineId {
    /// Candle's tensors, with our own packed forward.
    Candle,
    /// Our own kernels, on the CPU.
    Native,
    /// ONNX Runtime.
    Onnx,
}

impl EngineId {
    /// All of them.
    pub const ALL: [EngineId; 3] = [EngineId::Candle, EngineId::Native, EngineId::Onnx];
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EngineId::Candle => "candle",
            EngineId::Native => "native",
            EngineId::Onnx => "onnx",
        })
    }
}

impl FromStr for EngineId {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = EngineId::ALL.into_iter().find(|engine| engine.to_string() == text);
        known.ok_or_else(|| UnknownName {
            what: "engine",
            name: text.to_owned(),
            known: "candle, native, onnx",
        })
    }
}

/// Where and how a model runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Which engine does it.
    pub engine: EngineId,
    /// On which device.
    pub device: Device,
    /// From which set of weight files, by the name that the card gives it.
    pub weights: String,
    /// Computing in which numbers.
    pub dtype: Dtype,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{} {}", self.engine, self.device, self.dtype, self.weights)
    }
}
