//! What was found out about placements on this machine with this build.

use std::collections::BTreeMap;

use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::Placement;
use serde::{Deserialize, Serialize};

use crate::accuracy::AccuracyReport;

/// What was found out about every placement of a model.
pub type Evidence = BTreeMap<Placement, Findings>;

/// What was found out about one placement. What was not tried is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Whether a small model of this architecture is right here; none for a graph, which can't be generated.
    pub twin: Option<Result<Agreement, Obstacle>>,
    /// How fast one layer is.
    pub speed: Option<Result<Vec<SpeedPoint>, Obstacle>>,
    /// Whether the real weights are right, and what they cost.
    pub canary: Option<Result<Canary, Obstacle>>,
}

/// It agrees with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The largest distance seen.
    pub error: Distance,
    /// How many cases were tried.
    pub cases: usize,
}

/// How long some layers took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPoint {
    /// Sequences.
    pub batch: usize,
    /// Tokens a sequence.
    pub length: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// Layers that it had: one of generated weights, or all of a file that runs as it is.
    pub layers: usize,
}

/// What the real weights gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// The largest distance from the reference, over all that was tried.
    pub error: Distance,
    /// How the vectors of the sample compare; none where they can't be ranked.
    pub accuracy: Option<AccuracyReport>,
    /// Tokens a second over texts of unlike lengths.
    pub tokens_per_second: f64,
    /// Bytes that the process held, where they can be told.
    pub memory: Option<u64>,
    /// The least and the largest length of a vector before it was normalised.
    pub norms: [f32; 2],
    /// How many nodes of a graph each provider really computed, where there is a graph.
    pub nodes: BTreeMap<String, usize>,
}

impl Findings {
    /// The first obstacle found.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        let twin = self.twin.as_ref().and_then(|found| found.as_ref().err());
        let speed = self.speed.as_ref().and_then(|found| found.as_ref().err());
        let canary = self.canary.as_ref().and_then(|found| found.as_ref().err());
        twin.or(speed).or(canary)
    }

    /// The nearest thing to the real error that is known: the canary's, else the twin's.
    pub fn error(&self) -> Option<Distance> {
        let canary = self.canary.as_ref().and_then(|found| found.as_ref().ok()).map(|canary| canary.error);
        let twin = self.twin.as_ref().and_then(|found| found.as_ref().ok()).map(|twin| twin.error);
        canary.or(twin)
    }

    /// The accuracy report of the real weights.
    pub fn accuracy(&self) -> Option<&AccuracyReport> {
        self.canary.as_ref()?.as_ref().ok()?.accuracy.as_ref()
    }

    /// Estimated seconds for one batch of the shape that matters for `goal`, over all `layers`, and its tokens.
    pub fn estimate(&self, goal: Goal, layers: usize) -> Option<Estimate> {
        let points = self.speed.as_ref()?.as_ref().ok()?;
        let point = match goal {
            Goal::Latency => points.first()?,
            Goal::Throughput => points.get(1)?,
        };
        let seconds = point.seconds * layers.max(1) as f64 / point.layers.max(1) as f64;
        Some(Estimate { seconds, texts: point.batch, tokens: point.batch * point.length })
    }
}

/// An estimate of a whole model from one of its layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds for the batch.
    pub seconds: f64,
    /// Texts in it.
    pub texts: usize,
    /// Tokens in it.
    pub tokens: usize,
}

impl Estimate {
    /// Texts a second.
    pub fn texts_per_second(&self) -> f64 {
        self.texts as f64 / self.seconds
    }

    /// Tokens a second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// What a placement is to be good at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Many texts a second.
    #[default]
    Throughput,
    /// One short text soon.
    Latency,
}
