//! Rotary position embedding: frequencies and their scaling rules.

use std::f64::consts::TAU;
use std::sync::{Arc, PoisonError, RwLock};

use sconce_kernels::rope::RopeTable;
use serde::Serialize;
use serde_json::Value;

use crate::config::{Config, Unsupported};

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Rotary dimension: values of a head that are rotated.
    pub rotary_dim: usize,
    /// Whether pairs are adjacent (interleaved), or split over the two halves of the rotary dimension.
    pub interleaved: bool,
    /// Context extension.
    pub scaling: RopeScaling,
}

/// Context extension of a rotary embedding.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeScaling {
    /// None.
    None,
    /// Position interpolation: every frequency is divided.
    Linear(f64),
    /// NTK-aware: the base is multiplied, and frequencies are divided to keep the fastest.
    Ntk(f64),
    /// Llama 3: low frequencies are divided, high ones kept, those between blended.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Rotations within the original context below which a frequency is low, and above which it is high.
        rotations: [f64; 2],
        /// The original context length.
        original: f64,
    },
    /// YaRN: low frequencies are divided, high ones kept, a ramp between them, and cosines and sines are scaled.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// First and last pair of the ramp.
        ramp: [f64; 2],
        /// Factor of cosines and sines.
        attention: f64,
    },
    /// LongRoPE: each frequency has a divisor of its own, which depends on the context length.
    LongRope {
        /// Divisors in contexts up to the original one.
        short: Vec<f64>,
        /// Divisors in longer contexts.
        long: Vec<f64>,
        /// The original context length.
        original: usize,
        /// The context length that the model is loaded with. Cached keys are rotated, so all sequences share one choice.
        context: usize,
        /// Factor of cosines and sines.
        attention: f64,
    },
}

impl Rope {
    /// A rotary embedding without scaling.
    pub(crate) fn unscaled(theta: f64, rotary_dim: usize) -> Rope {
        Rope { theta, rotary_dim, interleaved: false, scaling: RopeScaling::None }
    }

    /// Reads `rope_parameters`, which may differ by `kind` of layer, or the key of `theta` and `rope_scaling`.
    pub(crate) fn read(
        c: &Config<'_>,
        kind: &str,
        theta: (&str, f64),
        head_dim: usize,
        positions: usize,
    ) -> Result<Rope, Unsupported> {
        Rope::read_partial(c, kind, theta, ("partial_rotary_factor", 1.0), head_dim, positions)
    }

    /// Reads a rotary embedding of a part of each head. `share` has the key of the part and its default.
    pub(crate) fn read_partial(
        c: &Config<'_>,
        kind: &str,
        theta: (&str, f64),
        share: (&str, f64),
        head_dim: usize,
        positions: usize,
    ) -> Result<Rope, Unsupported> {
        let all = c.get("rope_parameters");
        let parameters = if all[kind].is_object() { &all[kind] } else { all };
        let old = c.get("rope_scaling");
        let scaling = if parameters.is_object() { parameters } else { old };
        let number = |key: &str| scaling[key].as_f64();
        let base = c.number(&[theta.0], theta.1);
        let base = parameters["rope_theta"].as_f64().unwrap_or(base);
        let share = c.number(&[share.0], number("partial_rotary_factor").unwrap_or(share.1));
        // A share that is a quotient may be rounded down.
        let rotary_dim = (head_dim as f64 * share + 1e-9) as usize / 2 * 2;
        if rotary_dim == 0 || rotary_dim > head_dim {
            return Err(Unsupported(format!("partial_rotary_factor {share} of head_dim {head_dim}")));
        }
        let lacks = |key: &str| Unsupported(format!("rope_scaling without {key}"));
        let named = |key: &'static str| number(key).ok_or_else(|| lacks(key));
        let scaling = match scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str()) {
            // Dynamic scaling has no effect up to the config's positions, which no sequence exceeds.
            None | Some("default" | "dynamic") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear(named("factor")?),
            Some("ntk") if scaling["mixed_b"].is_null() => RopeScaling::Ntk(named("factor")?),
            Some("llama3") => RopeScaling::Llama3 {
                factor: named("factor")?,
                rotations: [named("low_freq_factor")?, named("high_freq_factor")?],
                original: named("original_max_position_embeddings")?,
            },
            Some("yarn") => yarn(scaling, base, rotary_dim, positions),
            Some("longrope" | "su") => {
                let original = number("original_max_position_embeddings");
                let original = original.unwrap_or(c.number(&["original_max_position_embeddings"], 0.0));
                long_rope(scaling, original, rotary_dim / 2, positions)?
            }
            Some(other) => return Err(Unsupported(format!("rope_scaling {other}"))),
        };
        Ok(Rope { theta: base, rotary_dim, interleaved: false, scaling })
    }

    /// Sets the context length that the model is loaded with.
    pub(crate) fn set_context(&mut self, length: usize) {
        if let RopeScaling::LongRope { context, .. } = &mut self.scaling {
            *context = length;
        }
    }

    /// The frequency of each pair, and the factor of cosines and sines.
    pub(crate) fn frequencies(&self) -> (Vec<f64>, f64) {
        let (rotary_dim, pairs) = (self.rotary_dim as f64, self.rotary_dim / 2);
        let unscaled = |theta: f64| (0..pairs).map(move |pair| theta.powf(-2.0 * pair as f64 / rotary_dim));
        match &self.scaling {
            RopeScaling::None => (unscaled(self.theta).collect(), 1.0),
            &RopeScaling::Linear(factor) => {
                (unscaled(self.theta).map(|frequency| frequency / factor).collect(), 1.0)
            }
            &RopeScaling::Ntk(factor) => {
                let divisor = factor.powf(2.0 / rotary_dim);
                (unscaled(self.theta * factor).map(|frequency| frequency / divisor).collect(), 1.0)
            }
            &RopeScaling::Llama3 { factor, rotations: [slow, fast], original } => {
                let scaled = unscaled(self.theta).map(|frequency| {
                    let rotations = original * frequency / TAU;
                    let kept = ((rotations - slow) / (fast - slow)).clamp(0.0, 1.0);
                    (1.0 - kept) * frequency / factor + kept * frequency
                });
                (scaled.collect(), 1.0)
            }
            &RopeScaling::Yarn { factor, ramp: [low, high], attention } => {
                let scaled = unscaled(self.theta).enumerate().map(|(pair, frequency)| {
                    let slow = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    slow * frequency / factor + (1.0 - slow) * frequency
                });
                (scaled.collect(), attention)
            }
            RopeScaling::LongRope { short, long, original, context, attention } => {
                let divisors = if context > original { long } else { short };
                let scaled =
                    unscaled(self.theta).zip(divisors).map(|(frequency, divisor)| frequency / divisor);
                (scaled.collect(), *attention)
            }
        }
    }

    /// The table of positions up to `length`. Frequencies and angles are f32, as in training: other precision would
    /// change far positions.
    fn table(&self, length: usize) -> RopeTable {
        let (frequencies, attention) = self.frequencies();
        let angles = (0..length).flat_map(|position| {
            frequencies.iter().map(move |&frequency| f64::from(position as f32 * frequency as f32))
        });
        let angles: Vec<f64> = angles.collect();
        RopeTable {
            cosines: angles.iter().map(|angle| (angle.cos() * attention) as f32).collect(),
            sines: angles.iter().map(|angle| (angle.sin() * attention) as f32).collect(),
            pairs: frequencies.len(),
            interleaved: self.interleaved,
        }
    }
}

fn yarn(scaling: &Value, theta: f64, rotary_dim: usize, positions: usize) -> RopeScaling {
    let number = |key: &str| scaling[key].as_f64();
    let original = number("original_max_position_embeddings").unwrap_or(positions as f64);
    let factor = number("factor").unwrap_or(positions as f64 / original);
    let mscale = |scale: f64, by: f64| if scale <= 1.0 { 1.0 } else { 0.1 * by * scale.ln() + 1.0 };
    let inferred = match (number("mscale"), number("mscale_all_dim")) {
        (Some(above), Some(below)) if above != 0.0 && below != 0.0 => {
            mscale(factor, above) / mscale(factor, below)
        }
        _ => mscale(factor, 1.0),
    };
    let pair_at =
        |rotations: f64| rotary_dim as f64 * (original / (rotations * TAU)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) =
        (pair_at(number("beta_fast").unwrap_or(32.0)), pair_at(number("beta_slow").unwrap_or(1.0)));
    if scaling["truncate"].as_bool().unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(rotary_dim as f64 - 1.0));
    let ramp = [low, if (low - high).abs() < f64::EPSILON { high + 0.001 } else { high }];
    RopeScaling::Yarn { factor, ramp, attention: number("attention_factor").unwrap_or(inferred) }
}

fn long_rope(
    scaling: &Value,
    original: f64,
    pairs: usize,
    positions: usize,
) -> Result<RopeScaling, Unsupported> {
    let divisors = |key: &str| {
        let listed =
            scaling[key].as_array().map(|list| list.iter().map_while(Value::as_f64).collect::<Vec<_>>());
        let count = listed.as_ref().map_or(0, Vec::len);
        let wrong = || Unsupported(format!("{key} with {count} values for {pairs} frequencies"));
        listed.filter(|list| list.len() == pairs && list.iter().all(|x| *x > 0.0)).ok_or_else(wrong)
    };
    if original < 2.0 {
        return Err(Unsupported("rope_scaling without original_max_position_embeddings".to_owned()));
    }
    let factor = scaling["factor"].as_f64().unwrap_or(positions as f64 / original);
    let inferred = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
    Ok(RopeScaling::LongRope {
        short: divisors("short_factor")?,
        long: divisors("long_factor")?,
        original: original as usize,
        context: positions,
        attention: scaling["attention_factor"].as_f64().unwrap_or(inferred),
    })
}

/// A rotary embedding's table, extended on demand.
pub(crate) struct RopeCache {
    rope: Rope,
    table: RwLock<Arc<RopeTable>>,
}

impl RopeCache {
    pub(crate) fn new(rope: &Rope) -> RopeCache {
        RopeCache { rope: rope.clone(), table: RwLock::new(Arc::new(rope.table(0))) }
    }

    /// The table of at least `length` positions.
    pub(crate) fn up_to(&self, length: usize) -> Arc<RopeTable> {
        let table = Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner));
        if table.cosines.len() >= length * table.pairs {
            return table;
        }
        let extended = Arc::new(self.rope.table(length.next_power_of_two()));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&extended);
        extended
    }
}
