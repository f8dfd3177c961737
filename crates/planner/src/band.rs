//! How far from the reference numbers may lie.

use std::f64::consts::FRAC_1_SQRT_2;
use std::fmt;
use std::str::FromStr;

use sconce_core::device::UnknownName;
use sconce_core::obstacle::Distance;
use sconce_core::placement::{Dtype, Placement};
use serde::{Deserialize, Serialize};

/// How near numbers lie to those of the f32 reference; a smaller band is a nearer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Band {
    /// Equal but for the order of sums.
    Exact,
    /// As near as half precision to a reference that is not f32, whose own distance from f32 nobody can measure.
    /// It satisfies every requested band but `exact`.
    Unknown,
    /// As near as half precision comes.
    Half,
    /// Farther than half precision comes, and still the same model.
    Coarse,
}

impl Band {
    /// The largest distance in this band.
    pub fn tolerance(self) -> f64 {
        match self {
            Band::Exact => 1e-5,
            Band::Unknown | Band::Half => 1e-3,
            // An angle of 45 degrees. Vectors of texts that have nothing in common stand at right angles, so that
            // one within half of that is still nearer to its own text than to any of those; beyond it a ranking
            // may put them first, and the numbers are of no use, whatever made them.
            Band::Coarse => 1.0 - FRAC_1_SQRT_2,
        }
    }

    /// The band that a distance falls into; none where it is not finite or beyond all.
    pub fn of(distance: Distance) -> Option<Band> {
        [Band::Exact, Band::Half, Band::Coarse].into_iter().find(|band| distance.within(band.tolerance()))
    }

    /// The band that a distance from `reference` falls into. A reference that does not compute in f32, such as that of
    /// a folder of quantised graphs, says nothing about bands nearer than `coarse`.
    pub fn measured(distance: Distance, reference: Option<&Placement>) -> Option<Band> {
        let is_f32 = reference.is_none_or(|reference| reference.dtype == Dtype::F32);
        let unknown = |band| if band < Band::Coarse { Band::Unknown } else { band };
        Band::of(distance).map(|band| if is_f32 { band } else { unknown(band) })
    }

    /// The band that a placement in this dtype must keep on generated weights, and is taken for until real ones
    /// were tried.
    pub fn expected(dtype: Dtype) -> Band {
        match dtype {
            Dtype::F32 => Band::Exact,
            Dtype::F16 | Dtype::Bf16 => Band::Half,
            Dtype::Int8 | Dtype::Int4 => Band::Coarse,
        }
    }
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
