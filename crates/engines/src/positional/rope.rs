//! Rotation by position: how fast each pair of a head's numbers ropes, by the rules of every scaling that is honoured.

use std::f64::consts::TAU;
use std::sync::{Arc, PoisonError, RwLock};

use sconce_kernels::rope::RopeTable;
use serde::Serialize;
use serde_json::Value;

use crate::config::{Config, Unsupported};

/// Rotation by position.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rope {
    /// The base of the wavelengths.
    pub theta: f64,
    /// How many numbers of a head are turned.
    pub width: usize,
    /// Whether a pair are interleaved, or lie half of the turned numbers apart.
    pub interleaved: bool,
    /// What was done to mask longer texts.
    pub scaling: Scaling,
}

/// What was done to a rotation to mask longer texts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// Nothing.
    None,
    /// Every angle divided.
    Linear(f64),
    /// The base multiplied, and the rope_table divided to keep the fastest.
    Ntk(f64),
    /// Slow pairs divided, fast ones kept, those between blended.
    Llama3 {
        /// What slow pairs are divided by.
        factor: f64,
        /// RopeCache within the original length below which a pair is slow, and above which it is fast.
        ropes: [f64; 2],
        /// The length that the model was first trained for.
        original: f64,
    },
    /// Slow pairs divided, fast ones kept, a ramp over the pairs between, and all numbers multiplied.
    Yarn {
        /// What slow pairs are divided by.
        factor: f64,
        /// The first and last pair of the ramp.
        ramp: [f64; 2],
        /// What cosines and sines are multiplied with.
        attention: f64,
    },
}

impl Rope {
    /// Without scaling.
    pub(crate) fn plain(theta: f64, width: usize) -> Rope {
        Rope { theta, width, interleaved: false, scaling: Scaling::None }
    }

    /// As configs have it: `rope_parameters`, which may differ by `kind` of layer, or `theta_key` and `rope_scaling`.
    /// `head` numbers a head, and texts of at most `positions` tokens.
    pub(crate) fn read(
        c: &Config<'_>,
        kind: &str,
        theta: (&str, f64),
        head: usize,
        positions: usize,
    ) -> Result<Rope, Unsupported> {
        let all = c.get("rope_parameters");
        let parameters = if all[kind].is_object() { &all[kind] } else { all };
        let old = c.get("rope_scaling");
        let scaling = if parameters.is_object() { parameters } else { old };
        let number = |key: &str| scaling[key].as_f64();
        let base = c.number(&[theta.0], theta.1);
        let base = parameters["rope_theta"].as_f64().unwrap_or(base);
        let share = c.number(&["partial_rotary_factor"], number("partial_rotary_factor").unwrap_or(1.0));
        let width = (head as f64 * share) as usize / 2 * 2;
        if width == 0 || width > head {
            return Err(Unsupported(format!("a rotation of {share} of {head} numbers")));
        }
        let lacks = |key: &str| Unsupported(format!("rope_scaling without {key}"));
        let named = |key: &'static str| number(key).ok_or_else(|| lacks(key));
        let scaling = match scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str()) {
            // The dynamic kind changes nothing up to the positions that the config names, which no text exceeds.
            None | Some("default" | "dynamic") => Scaling::None,
            Some("linear") => Scaling::Linear(named("factor")?),
            Some("ntk") if scaling["mixed_b"].is_null() => Scaling::Ntk(named("factor")?),
            Some("llama3") => Scaling::Llama3 {
                factor: named("factor")?,
                ropes: [named("low_freq_factor")?, named("high_freq_factor")?],
                original: named("original_max_position_embeddings")?,
            },
            Some("yarn") => yarn(scaling, base, width, positions),
            Some(other) => return Err(Unsupported(format!("rope_scaling {other}"))),
        };
        Ok(Rope { theta: base, width, interleaved: false, scaling })
    }

    /// For each pair how far it ropes from one position to the next, and what its cosines and sines are multiplied
    /// with.
    pub(crate) fn speeds(&self) -> (Vec<f64>, f64) {
        let (width, pairs) = (self.width as f64, self.width / 2);
        let plain = |theta: f64| (0..pairs).map(move |pair| theta.powf(-2.0 * pair as f64 / width));
        match self.scaling {
            Scaling::None => (plain(self.theta).collect(), 1.0),
            Scaling::Linear(factor) => (plain(self.theta).map(|speed| speed / factor).collect(), 1.0),
            Scaling::Ntk(factor) => {
                let divisor = factor.powf(2.0 / width);
                (plain(self.theta * factor).map(|speed| speed / divisor).collect(), 1.0)
            }
            Scaling::Llama3 { factor, ropes: [slow, fast], original } => {
                let scaled = plain(self.theta).map(|speed| {
                    let ropes = original * speed / TAU;
                    let kept = ((ropes - slow) / (fast - slow)).clamp(0.0, 1.0);
                    (1.0 - kept) * speed / factor + kept * speed
                });
                (scaled.collect(), 1.0)
            }
            Scaling::Yarn { factor, ramp: [low, high], attention } => {
                let scaled = plain(self.theta).enumerate().map(|(pair, speed)| {
                    let slow = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    slow * speed / factor + (1.0 - slow) * speed
                });
                (scaled.collect(), attention)
            }
        }
    }

    /// The rope_table of the positions up to `length`. Speeds and rope_table are single precision, as everywhere: models are
    /// trained so, and far positions would turn otherwise.
    fn rope_table(&self, length: usize) -> RopeTable {
        let (speeds, attention) = self.speeds();
        let rope_table = (0..length)
            .flat_map(|position| speeds.iter().map(move |&speed| f64::from(position as f32 * speed as f32)));
        let rope_table: Vec<f64> = rope_table.collect();
        RopeTable {
            cosines: rope_table.iter().map(|angle| (angle.cos() * attention) as f32).collect(),
            sines: rope_table.iter().map(|angle| (angle.sin() * attention) as f32).collect(),
            pairs: speeds.len(),
            interleaved: self.interleaved,
        }
    }
}

fn yarn(scaling: &Value, theta: f64, width: usize, positions: usize) -> Scaling {
    let number = |key: &str| scaling[key].as_f64();
    let original = number("original_max_position_embeddings").unwrap_or(positions as f64);
    let factor = number("factor").unwrap_or(positions as f64 / original);
    let grown = |scale: f64, by: f64| if scale <= 1.0 { 1.0 } else { 0.1 * by * scale.ln() + 1.0 };
    let inferred = match (number("mscale"), number("mscale_all_dim")) {
        (Some(above), Some(below)) if above != 0.0 && below != 0.0 => {
            grown(factor, above) / grown(factor, below)
        }
        _ => grown(factor, 1.0),
    };
    let place = |ropes: f64| width as f64 * (original / (ropes * TAU)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) =
        (place(number("beta_fast").unwrap_or(32.0)), place(number("beta_slow").unwrap_or(1.0)));
    if scaling["truncate"].as_bool().unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(width as f64 - 1.0));
    let ramp = [low, if (low - high).abs() < f64::EPSILON { high + 0.001 } else { high }];
    Scaling::Yarn { factor, ramp, attention: number("attention_factor").unwrap_or(inferred) }
}

/// The rope_table of a rotation, made for as many positions as were needed so far.
pub(crate) struct RopeCache {
    rope: Rope,
    made: RwLock<Arc<RopeTable>>,
}

impl RopeCache {
    pub(crate) fn new(rope: &Rope) -> RopeCache {
        RopeCache { rope: rope.clone(), made: RwLock::new(Arc::new(rope.rope_table(0))) }
    }

    /// The rope_table of at least `length` positions.
    pub(crate) fn up_to(&self, length: usize) -> Arc<RopeTable> {
        let made = Arc::clone(&self.made.read().unwrap_or_else(PoisonError::into_inner));
        if made.cosines.len() >= length * made.pairs {
            return made;
        }
        let more = Arc::new(self.rope.rope_table(length.next_power_of_two()));
        *self.made.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&more);
        more
    }
}
