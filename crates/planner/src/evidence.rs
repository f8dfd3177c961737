//! Evidence: what probes found about placements on this machine with this build.

use std::collections::BTreeMap;

use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::{Dtype, Placement};
use serde::{Deserialize, Serialize};

use crate::accuracy::AccuracyReport;
use crate::band::{Band, is_by_predictions};

/// The findings for each placement of a model.
pub type Evidence = BTreeMap<Placement, Findings>;

/// The findings for one placement. What was not probed is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Accuracy of the twin; none for a graph, which has no twin.
    pub twin: Option<Result<Agreement, Obstacle>>,
    /// Speed of one layer.
    pub speed: Option<Result<Vec<SpeedPoint>, Obstacle>>,
    /// Accuracy, speed and memory of the real weights.
    pub canary: Option<Result<Canary, Obstacle>>,
}

/// Agreement with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The largest distance.
    pub error: Distance,
    /// Number of cases.
    pub cases: usize,
}

/// A speed measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPoint {
    /// Sequences.
    pub batch: usize,
    /// Tokens per sequence.
    pub length: usize,
    /// Cached tokens per sequence, in a decode step.
    #[serde(default)]
    pub cached: Option<usize>,
    /// Run time in seconds.
    pub seconds: f64,
    /// Measured layers: one with generated weights, or all layers of a graph.
    pub layers: usize,
}

/// The result of a canary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// The largest distance from the reference.
    pub error: Distance,
    /// The accuracy report; none if the outputs can't be ranked.
    pub accuracy: Option<AccuracyReport>,
    /// Throughput over texts of mixed lengths.
    pub tokens_per_second: f64,
    /// Memory of the process in bytes, if known.
    pub memory: Option<u64>,
    /// Minimum and maximum L2 norm before normalization.
    pub norms: [f32; 2],
    /// Number of graph nodes that each execution provider computed.
    pub nodes: BTreeMap<String, usize>,
}

impl Canary {
    /// The band of a placement in `dtype`. With quantized weights, a language model is judged by what it predicts: rounding
    /// activations to 8 bits moves hidden states further than it changes predictions.
    pub fn band(&self, dtype: Dtype, reference: Option<&Placement>) -> Option<Band> {
        let band = Band::measured(self.error, reference)?;
        match self.predictions(dtype).and_then(AccuracyReport::predicts_alike) {
            Some(true) => {
                Band::measured(Distance(Some(Band::Half.tolerance())), reference).map(|half| band.min(half))
            }
            Some(false) => Some(Band::Coarse),
            None => Some(band),
        }
    }

    /// The report of the predictions, if the band of a placement in `dtype` follows from them.
    pub fn predictions(&self, dtype: Dtype) -> Option<&AccuracyReport> {
        let generates = |report: &AccuracyReport| report.predicts_alike().is_some();
        self.accuracy.as_ref().filter(|report| is_by_predictions(dtype, generates(report)))
    }
}

impl Findings {
    /// The first obstacle.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        let twin = self.twin.as_ref().and_then(|found| found.as_ref().err());
        let speed = self.speed.as_ref().and_then(|found| found.as_ref().err());
        let canary = self.canary.as_ref().and_then(|found| found.as_ref().err());
        twin.or(speed).or(canary)
    }

    /// The error of the canary, or of the twin without a canary.
    pub fn error(&self) -> Option<Distance> {
        let canary = self.canary.as_ref().and_then(|found| found.as_ref().ok()).map(|canary| canary.error);
        let twin = self.twin.as_ref().and_then(|found| found.as_ref().ok()).map(|twin| twin.error);
        canary.or(twin)
    }

    /// Whether decode steps were measured.
    pub fn generates(&self) -> bool {
        let points = self.speed.as_ref().and_then(|found| found.as_ref().ok());
        points.is_some_and(|points| points.iter().any(|point| point.cached.is_some()))
    }

    /// The accuracy report of the real weights.
    pub fn accuracy(&self) -> Option<&AccuracyReport> {
        self.canary.as_ref()?.as_ref().ok()?.accuracy.as_ref()
    }

    /// Estimated run time of the goal's batch over all `layers`. For text generation, it is the run time of a decode
    /// step.
    pub fn estimate(&self, goal: Goal, layers: usize) -> Option<Estimate> {
        let points = self.speed.as_ref()?.as_ref().ok()?;
        let generates = self.generates();
        let mut points = points.iter().filter(|point| point.cached.is_some() == generates);
        let point = match goal {
            Goal::Latency => points.next()?,
            Goal::Throughput => points.nth(1)?,
        };
        let seconds = point.seconds * layers.max(1) as f64 / point.layers.max(1) as f64;
        Some(Estimate { seconds, texts: point.batch, tokens: point.batch * point.length })
    }
}

/// An estimate for the whole model, extrapolated from one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds for the batch.
    pub seconds: f64,
    /// Texts in the batch.
    pub texts: usize,
    /// Tokens in the batch.
    pub tokens: usize,
}

impl Estimate {
    /// Throughput in texts per second.
    pub fn texts_per_second(&self) -> f64 {
        self.texts as f64 / self.seconds
    }

    /// Throughput in tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// What to optimize.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Throughput of large batches.
    #[default]
    Throughput,
    /// Latency of one short text.
    Latency,
}
