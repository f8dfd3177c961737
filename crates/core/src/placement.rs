//! Placements: cells of the grid engine × device × weights × dtype.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::device::{Device, UnknownName};

/// The dtype that a placement computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits: the reference.
    F32,
    /// IEEE half precision, 16 bits.
    F16,
    /// The upper half of an f32, 16 bits.
    Bf16,
    /// 8-bit integers with scales: quantized weights.
    Int8,
    /// 4-bit integers with scales.
    Int4,
}

impl Dtype {
    /// All dtypes, widest first.
    pub const ALL: [Dtype; 5] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Int8, Dtype::Int4];
    /// Floating-point dtypes, widest first.
    pub const FLOATS: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// Whether values are floating-point numbers.
    pub fn is_float(self) -> bool {
        Dtype::FLOATS.contains(&self)
    }

    /// Bits per value.
    pub fn bits(self) -> u64 {
        match self {
            Dtype::F32 => 32,
            Dtype::F16 | Dtype::Bf16 => 16,
            Dtype::Int8 => 8,
            Dtype::Int4 => 4,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::Int8 => "int8",
            Dtype::Int4 => "int4",
        })
    }
}

impl FromStr for Dtype {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = Dtype::ALL.into_iter().find(|dtype| dtype.to_string() == text);
        known.ok_or_else(|| UnknownName {
            what: "dtype",
            name: text.to_owned(),
            known: "f32, f16, bf16, int8, int4",
        })
    }
}

/// An inference engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineId {
    /// Candle with sconce's packed forward pass.
    Candle,
    /// sconce's own kernels, on the CPU.
    Native,
    /// ONNX Runtime.
    Onnx,
}

impl EngineId {
    /// All engines.
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

/// A placement: where and how a model runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The engine.
    pub engine: EngineId,
    /// The device.
    pub device: Device,
    /// The set of weights, by its name in the card.
    pub weights: String,
    /// The dtype of the computation.
    pub dtype: Dtype,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{} {}", self.engine, self.device, self.dtype, self.weights)
    }
}
