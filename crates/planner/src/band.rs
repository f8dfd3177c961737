//! Accuracy bands: distances from the reference.

use std::f64::consts::FRAC_1_SQRT_2;
use std::fmt;
use std::str::FromStr;

use sconce_core::device::{Device, UnknownName};
use sconce_core::obstacle::Distance;
use sconce_core::placement::{Dtype, EngineId, Placement};
use serde::{Deserialize, Serialize};

/// An accuracy band: the distance from the f32 reference. A smaller band is more accurate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Band {
    /// Equal up to the order of summation.
    Exact,
    /// Within `half` of a reference that is not f32, whose own distance from f32 is not known. Satisfies every requested
    /// band but `exact`.
    Unknown,
    /// Within half precision.
    Half,
    /// Beyond half precision, and still useful.
    Coarse,
}

impl Band {
    /// The largest distance in the band.
    pub fn tolerance(self) -> f64 {
        match self {
            Band::Exact => 1e-5,
            Band::Unknown | Band::Half => 1e-3,
            // An angle of 45 degrees. Vectors of unrelated texts are orthogonal, so a vector within half of a right
            // angle is still closer to its own text than to an unrelated one. Beyond it, rankings may be wrong.
            Band::Coarse => 1.0 - FRAC_1_SQRT_2,
        }
    }

    /// The band of a distance; none if it is not finite or beyond all bands.
    pub fn of(distance: Distance) -> Option<Band> {
        [Band::Exact, Band::Half, Band::Coarse].into_iter().find(|band| distance.within(band.tolerance()))
    }

    /// The band of a distance from `reference`. A reference that does not compute in f32, such as a quantized graph, can
    /// only tell `coarse` from `unknown`.
    pub fn measured(distance: Distance, reference: Option<&Placement>) -> Option<Band> {
        let is_f32 = reference.is_none_or(|reference| reference.dtype == Dtype::F32);
        let unknown = |band| if band < Band::Coarse { Band::Unknown } else { band };
        Band::of(distance).map(|band| if is_f32 { band } else { unknown(band) })
    }

    /// The band that a twin must keep. A language model with quantized weights is judged by what it predicts, and a twin
    /// predicts nothing: its twin must be right, and the canary tells how accurate it is.
    pub fn of_twin(placement: &Placement, generates: bool) -> Band {
        if is_by_predictions(placement.dtype, generates) { Band::Coarse } else { Band::expected(placement) }
    }

    /// The band that is assumed until a canary measures the real weights.
    pub fn expected(placement: &Placement) -> Band {
        match (placement.dtype, placement.engine, placement.device) {
            (Dtype::F32, ..) => Band::Exact,
            // Candle rounds activations to 8 bits there.
            (Dtype::Int8 | Dtype::Int4, EngineId::Candle, Device::Cpu | Device::Cuda(_)) => Band::Coarse,
            (Dtype::F16 | Dtype::Bf16 | Dtype::Int8 | Dtype::Int4, ..) => Band::Half,
        }
    }
}

/// Whether the band of a placement follows from its predictions: that of a language model with quantized weights.
pub(crate) fn is_by_predictions(dtype: Dtype, generates: bool) -> bool {
    generates && !dtype.is_float()
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Band::Exact => "exact",
            Band::Unknown => "unknown",
            Band::Half => "half",
            Band::Coarse => "coarse",
        })
    }
}

impl FromStr for Band {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let known = [Band::Exact, Band::Half, Band::Coarse].into_iter().find(|band| band.to_string() == text);
        known.ok_or_else(|| UnknownName { what: "band", name: text.to_owned(), known: "exact, half, coarse" })
    }
}
