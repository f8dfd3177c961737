//! The decision: which placement serves, which come next, and why the others do not.

use sconce_core::card::ModelCard;
use sconce_core::device::{Device, DeviceKind};
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use serde::{Deserialize, Serialize};

use crate::accuracy::AccuracyReport;
use crate::band::Band;
use crate::evidence::{Estimate, Evidence, Findings, Goal};
use crate::grid::reference;

/// What the user wants. What is not said is left to the evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraints {
    /// Only this engine.
    pub engine: Option<EngineId>,
    /// Only this device.
    pub device: Option<Device>,
    /// Only this dtype.
    pub dtype: Option<Dtype>,
    /// Only these weights.
    pub weights: Option<String>,
    /// Nothing farther from the reference than this.
    pub band: Band,
    /// What it is to be good at.
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
    /// Whether `placement` is one that was wished for.
    pub fn admits(&self, placement: &Placement) -> bool {
        self.engine.is_none_or(|engine| engine == placement.engine)
            && self.device.is_none_or(|device| device == placement.device)
            && self.dtype.is_none_or(|dtype| dtype == placement.dtype)
            && self.weights.as_ref().is_none_or(|weights| *weights == placement.weights)
    }
}

/// Where a model runs, where it could run, and why it does not run elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The placement that all others were compared with.
    pub reference: Option<Placement>,
    /// The first by the constraints; none where nothing that was wished for works.
    pub chosen: Option<Viable>,
    /// The others that work, best first.
    pub fallbacks: Vec<Viable>,
    /// Those that do not, or that were not wished for.
    pub refused: Vec<Refused>,
    /// The placements that were wished for and failed, and what serves instead.
    #[serde(default)]
    pub downgrades: Vec<Downgrade>,
}

/// A placement that failed, and the one that serves instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Downgrade {
    /// The placement that failed.
    pub from: Placement,
    /// The placement chosen instead, where there is one.
    pub to: Option<Placement>,
    /// Why it failed.
    pub why: Obstacle,
}

/// A placement that works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Viable {
    /// Which.
    pub placement: Placement,
    /// How near it lies to the reference.
    pub band: Band,
    /// Whether it is itself the reference and not f32: its error is 0 by definition, and its band unknown.
    #[serde(default)]
    pub is_own_reference: bool,
    /// Estimated seconds for a batch of `texts` texts.
    pub seconds: f64,
    /// Texts of 128 tokens a second, estimated.
    pub texts_per_second: f64,
    /// Whether a batch may be replayed here: its numbers lie as near to the reference as the chosen one's.
    pub replays: bool,
    /// How much slower it is than the chosen one, where it is.
    pub note: Option<Obstacle>,
    /// What was found.
    pub findings: Findings,
}

/// A placement that is not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// Which.
    pub placement: Placement,
    /// Why.
    pub why: Refusal,
}

/// Why a placement is not used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It can't be.
    Obstacle(Obstacle),
    /// It works and lies farther from the reference than was wished.
    Band {
        /// Its band.
        band: Band,
        /// How far it lies.
        error: Distance,
        /// What its vectors are worth, where real weights were tried.
        accuracy: Option<AccuracyReport>,
    },
    /// It was not asked for.
    NotRequested,
    /// It was not tried.
    NotTried,
}

/// Decides from what stands against each placement of `grid` beforehand and what was found by trying.
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
        match weigh(placement, obstacle.as_ref(), evidence.get(placement), reference, constraints, layers) {
            Ok(found) => viable.push(found),
            Err(why) => refused.push(Refused { placement: placement.clone(), why }),
        }
    }
    viable.sort_by(|a, b| weight(a).total_cmp(&weight(b)));
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

/// What placements are sorted by: a looser one must be a tenth faster, so that noise does not cost exactness.
fn weight(viable: &Viable) -> f64 {
    match viable.band {
        Band::Exact => viable.seconds,
        Band::Unknown | Band::Half => viable.seconds * 1.1,
        Band::Coarse => viable.seconds * 1.21,
    }
}

fn weigh(
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
    let band = Band::measured(error, reference).ok_or(Refusal::NotTried)?;
    // The band of generated weights is the dtype's; real weights tell more once they were tried.
    let band = if findings.canary.is_some() { band } else { band.max(Band::expected(placement.dtype)) };
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
    /// The downgrade to `to` that this refusal means, where the placement failed.
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
    /// Every placement that works, best first.
    pub fn viable(&self) -> impl Iterator<Item = &Viable> {
        self.chosen.iter().chain(&self.fallbacks)
    }

    /// Whether `placement` is the one that serves.
    pub fn is_chosen(&self, placement: &Placement) -> bool {
        self.chosen.as_ref().is_some_and(|chosen| chosen.placement == *placement)
    }

    /// Whether some placement on `device` works.
    pub fn supports(&self, device: Device) -> bool {
        self.viable().any(|viable| viable.placement.device == device)
    }

    /// Refuses `placement`. Where it was the chosen one, the next takes its place: the first, or once answers
    /// were given the first that lies no farther from the reference than they were `promised` to.
    /// What was known of it is given back, so that it can return.
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

    /// Takes back a placement that was retired, to where it was among the others.
    pub fn restore(&mut self, viable: Viable, promised: Option<Band>) {
        self.refused.retain(|refused| refused.placement != viable.placement);
        self.downgrades.retain(|downgrade| downgrade.from != viable.placement);
        self.fallbacks.extend(self.chosen.take());
        self.fallbacks.push(viable);
        self.fallbacks.sort_by(|a, b| weight(a).total_cmp(&weight(b)));
        self.choose(promised);
        self.compare(promised);
    }

    /// Chooses the first fallback that lies no farther from the reference than was promised.
    fn choose(&mut self, promised: Option<Band>) {
        let fits = |viable: &Viable| promised.is_none_or(|band| viable.band <= band);
        let next = self.fallbacks.iter().position(fits);
        self.chosen = next.map(|next| Viable { note: None, replays: true, ..self.fallbacks.remove(next) });
    }

    /// Says of every fallback how it compares with the chosen one.
    fn compare(&mut self, promised: Option<Band>) {
        let Some(chosen) = &self.chosen else { return };
        for fallback in &mut self.fallbacks {
            fallback.replays = fallback.band <= promised.unwrap_or(chosen.band);
            let ratio = fallback.seconds / chosen.seconds;
            let slower = Obstacle::Slower { than: chosen.placement.clone(), ratio };
            // A looser one may be a little faster and come second all the same.
            fallback.note = (ratio >= 1.0).then_some(slower);
        }
    }

    /// The plan in words.
    pub fn explain(&self) -> String {
        crate::explain::explain(self)
    }

    /// The accelerator that works and loses to the processor, if that is how it went.
    pub fn beaten_accelerator(&self) -> Option<&Viable> {
        let on_cpu = self.chosen.as_ref().is_some_and(|chosen| chosen.placement.device == Device::Cpu);
        let beaten =
            |viable: &&Viable| viable.placement.device.kind() != DeviceKind::Cpu && viable.note.is_some();
        self.fallbacks.iter().find(beaten).filter(|_| on_cpu)
    }
}
