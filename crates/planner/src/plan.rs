//! The plan: the chosen placement, the fallbacks, and the refused placements with their reasons.

use sconce_core::card::ModelCard;
use sconce_core::device::{Device, DeviceKind};
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use serde::{Deserialize, Serialize};

use crate::accuracy::AccuracyReport;
use crate::band::{Band, is_by_predictions};
use crate::evidence::{Estimate, Evidence, Findings, Goal};
use crate::grid::reference;

/// The user's constraints on placements. Fields that are unset leave the choice to the evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraints {
    /// The engine to use.
    pub engine: Option<EngineId>,
    /// The device to use.
    pub device: Option<Device>,
    /// The dtype to use.
    pub dtype: Option<Dtype>,
    /// The weights to use.
    pub weights: Option<String>,
    /// The widest accuracy band that is accepted.
    pub band: Band,
    /// What to optimize.
    pub goal: Goal,
}

impl Default for Constraints {
    fn default() -> Constraints {
        Constraints {
            engine: None,
            device: None,
            dtype: None,
            weights: None,
            band: Band::Half,
            goal: Goal::default(),
        }
    }
}

impl Constraints {
    /// Whether `placement` satisfies the constraints.
    pub fn admits(&self, placement: &Placement) -> bool {
        self.engine.is_none_or(|engine| engine == placement.engine)
            && self.device.is_none_or(|device| device == placement.device)
            && self.dtype.is_none_or(|dtype| dtype == placement.dtype)
            && self.weights.as_ref().is_none_or(|weights| *weights == placement.weights)
    }
}

/// A plan: where a model runs, where it could run, and why it does not run elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The reference placement.
    pub reference: Option<Placement>,
    /// The chosen placement; none if no placement within the constraints works.
    pub chosen: Option<Viable>,
    /// Other viable placements, best first.
    pub fallbacks: Vec<Viable>,
    /// Placements that failed, or that the constraints exclude.
    pub refused: Vec<Refused>,
    /// Placements within the constraints that failed, and what serves instead.
    #[serde(default)]
    pub downgrades: Vec<Downgrade>,
}

/// A failed placement and its replacement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Downgrade {
    /// The failed placement.
    pub from: Placement,
    /// The chosen placement, if there is one.
    pub to: Option<Placement>,
    /// Why it failed.
    pub why: Obstacle,
}

/// A viable placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Viable {
    /// The placement.
    pub placement: Placement,
    /// Its accuracy band.
    pub band: Band,
    /// Whether it is the reference and not f32: its error is 0 by definition, its band unknown.
    #[serde(default)]
    pub is_own_reference: bool,
    /// Estimated seconds for the batch of the goal.
    pub seconds: f64,
    /// Estimated throughput, in texts of 128 tokens per second. For text generation, in generated tokens per second of
    /// eight sequences.
    pub texts_per_second: f64,
    /// Whether batches may be replayed here: its band is no wider than the chosen placement's.
    pub replays: bool,
    /// How much slower it is than the chosen placement.
    pub note: Option<Obstacle>,
    /// The evidence.
    pub findings: Findings,
}

/// A refused placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// The placement.
    pub placement: Placement,
    /// Why.
    pub why: Refusal,
}

/// Why a placement is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It has an obstacle.
    Obstacle(Obstacle),
    /// Its band is wider than the constraints allow.
    Band {
        /// Its band.
        band: Band,
        /// Distance from the reference.
        error: Distance,
        /// Accuracy report of the real weights, if a canary ran.
        accuracy: Option<AccuracyReport>,
    },
    /// The constraints exclude it.
    NotRequested,
    /// It was not probed.
    NotTried,
}

/// Makes the plan from the grid with its known obstacles, and the evidence.
pub fn plan(
    card: &ModelCard,
    grid: &[(Placement, Option<Obstacle>)],
    evidence: &Evidence,
    constraints: &Constraints,
) -> Plan {
    let layers = card.sizes.value.layers;
    let mut viable = Vec::new();
    let mut refused = Vec::new();
    let open = grid.iter().filter(|(_, obstacle)| obstacle.is_none()).map(|(placement, _)| placement);
    let reference = reference(card, open);
    for (placement, obstacle) in grid {
        match evaluate(placement, obstacle.as_ref(), evidence.get(placement), reference, constraints, layers)
        {
            Ok(found) => viable.push(found),
            Err(why) => refused.push(Refused { placement: placement.clone(), why }),
        }
    }
    viable.sort_by(|a, b| sort_key(a).total_cmp(&sort_key(b)));
    let mut viable = viable.into_iter();
    let chosen = viable.next();
    let to = chosen.as_ref().map(|chosen| &chosen.placement);
    let failed = refused.iter().filter(|refused| constraints.admits(&refused.placement));
    let downgrades = failed.filter_map(|refused| refused.downgrade(to)).collect();
    let (reference, fallbacks) = (reference.cloned(), viable.collect());
    let mut plan = Plan { reference, chosen, fallbacks, refused, downgrades };
    plan.compare(None);
    plan
}

/// The sort key: a wider band must be a tenth faster, so that timing noise does not cost accuracy.
fn sort_key(viable: &Viable) -> f64 {
    match viable.band {
        Band::Exact => viable.seconds,
        Band::Unknown | Band::Half => viable.seconds * 1.1,
        Band::Coarse => viable.seconds * 1.21,
    }
}

fn evaluate(
    placement: &Placement,
    obstacle: Option<&Obstacle>,
    findings: Option<&Findings>,
    reference: Option<&Placement>,
    constraints: &Constraints,
    layers: usize,
) -> Result<Viable, Refusal> {
    if let Some(obstacle) = obstacle.or_else(|| findings.and_then(Findings::obstacle)) {
        return Err(Refusal::Obstacle(obstacle.clone()));
    }
    if !constraints.admits(placement) {
        return Err(Refusal::NotRequested);
    }
    let findings = findings.ok_or(Refusal::NotTried)?;
    let error = findings.error().ok_or(Refusal::NotTried)?;
    let band = match &findings.canary {
        Some(Ok(canary)) => canary.band(placement.dtype, reference),
        // A canary measures the real weights. Until then the band is that of the dtype, or a wider one of the twin.
        Some(Err(_)) | None => Band::measured(error, reference).map(|twin| {
            let expected = Band::expected(placement);
            if is_by_predictions(placement.dtype, findings.generates()) {
                expected
            } else {
                expected.max(twin)
            }
        }),
    };
    let band = band.ok_or(Refusal::NotTried)?;
    if band > constraints.band {
        return Err(Refusal::Band { band, error, accuracy: findings.accuracy().copied() });
    }
    let estimate = findings.estimate(constraints.goal, layers).ok_or(Refusal::NotTried)?;
    let bulk = findings.estimate(Goal::Throughput, layers);
    Ok(Viable {
        placement: placement.clone(),
        band,
        is_own_reference: placement.dtype != Dtype::F32 && reference == Some(placement),
        seconds: estimate.seconds,
        texts_per_second: bulk.as_ref().map_or(0.0, Estimate::texts_per_second),
        replays: true,
        note: None,
        findings: findings.clone(),
    })
}

impl Refused {
    /// The downgrade to `to`, if the placement failed.
    fn downgrade(&self, to: Option<&Placement>) -> Option<Downgrade> {
        match &self.why {
            Refusal::Obstacle(why) if why.is_failure() => {
                Some(Downgrade { from: self.placement.clone(), to: to.cloned(), why: why.clone() })
            }
            Refusal::Obstacle(_) | Refusal::Band { .. } | Refusal::NotRequested | Refusal::NotTried => None,
        }
    }
}

impl Plan {
    /// All viable placements, best first.
    pub fn viable(&self) -> impl Iterator<Item = &Viable> {
        self.chosen.iter().chain(&self.fallbacks)
    }

    /// Whether `placement` is the chosen one.
    pub fn is_chosen(&self, placement: &Placement) -> bool {
        self.chosen.as_ref().is_some_and(|chosen| chosen.placement == *placement)
    }

    /// Whether a placement on `device` is viable.
    pub fn supports(&self, device: Device) -> bool {
        self.viable().any(|viable| viable.placement.device == device)
    }

    /// Removes `placement` and returns its entry, so that `restore` can bring it back. The next fallback replaces the
    /// chosen placement; once answers were sent, only one within the `promised` band.
    pub fn retire(&mut self, placement: &Placement, why: Obstacle, promised: Option<Band>) -> Option<Viable> {
        let of_it = |viable: &Viable| viable.placement == *placement;
        let served = self.chosen.as_ref().is_some_and(of_it);
        let retired = if served {
            let retired = self.chosen.take();
            self.choose(promised);
            retired
        } else {
            let place = self.fallbacks.iter().position(of_it)?;
            Some(self.fallbacks.remove(place))
        };
        let refused = Refused { placement: placement.clone(), why: Refusal::Obstacle(why) };
        if served {
            let to = self.chosen.as_ref().map(|chosen| &chosen.placement);
            self.downgrades.retain(|downgrade| downgrade.from != *placement);
            self.downgrades.extend(refused.downgrade(to));
        }
        self.refused.push(refused);
        self.compare(promised);
        retired
    }

    /// Restores a retired placement to its rank.
    pub fn restore(&mut self, viable: Viable, promised: Option<Band>) {
        self.refused.retain(|refused| refused.placement != viable.placement);
        self.downgrades.retain(|downgrade| downgrade.from != viable.placement);
        self.fallbacks.extend(self.chosen.take());
        self.fallbacks.push(viable);
        self.fallbacks.sort_by(|a, b| sort_key(a).total_cmp(&sort_key(b)));
        self.choose(promised);
        self.compare(promised);
    }

    /// Chooses the first fallback within the promised band.
    fn choose(&mut self, promised: Option<Band>) {
        let fits = |viable: &Viable| promised.is_none_or(|band| viable.band <= band);
        let next = self.fallbacks.iter().position(fits);
        self.chosen = next.map(|next| Viable { note: None, replays: true, ..self.fallbacks.remove(next) });
    }

    /// Updates the comparison of every fallback with the chosen placement.
    fn compare(&mut self, promised: Option<Band>) {
        let Some(chosen) = &self.chosen else { return };
        for fallback in &mut self.fallbacks {
            fallback.replays = fallback.band <= promised.unwrap_or(chosen.band);
            let ratio = fallback.seconds / chosen.seconds;
            let slower = Obstacle::Slower { than: chosen.placement.clone(), ratio };
            // A placement with a wider band may be slightly faster and still come second.
            fallback.note = (ratio >= 1.0).then_some(slower);
        }
    }

    /// The viable accelerator that is slower than the chosen CPU placement.
    pub fn slower_accelerator(&self) -> Option<&Viable> {
        let on_cpu = self.chosen.as_ref().is_some_and(|chosen| chosen.placement.device == Device::Cpu);
        let slower =
            |viable: &&Viable| viable.placement.device.kind() != DeviceKind::Cpu && viable.note.is_some();
        self.fallbacks.iter().find(slower).filter(|_| on_cpu)
    }
}
