//! Points of a sweep: throughput at one batch size and text length.

use serde_json::{Value, json};

/// One measured batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    /// Batch size.
    pub(super) texts: usize,
    /// Tokens of the whole batch.
    pub(super) tokens: usize,
    /// Time of the fastest run.
    pub(super) seconds: f64,
}

impl Point {
    /// Mean tokens per text.
    pub(super) fn length(&self) -> f64 {
        self.tokens as f64 / self.texts as f64
    }

    pub(super) fn texts_per_s(&self) -> f64 {
        self.texts as f64 / self.seconds
    }

    pub(super) fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// The points of one runner.
#[derive(Default)]
pub(super) struct Sweep {
    pub(super) by_batch: Vec<Point>,
    pub(super) by_length: Vec<Point>,
}

impl Sweep {
    pub(super) fn json(&self) -> Value {
        let points = |points: &[Point]| {
            let point = |point: &Point| {
                json!({
                    "texts": point.texts, "tokens_per_text": point.length(),
                    "texts_per_s": point.texts_per_s(), "tokens_per_s": point.tokens_per_s(),
                })
            };
            points.iter().map(point).collect::<Vec<_>>()
        };
        json!({ "by_batch": points(&self.by_batch), "by_length": points(&self.by_length) })
    }
}
