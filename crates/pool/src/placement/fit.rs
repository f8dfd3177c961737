//! The answer of a worker to `/v1/fit`, as a bid.

use serde::Deserialize;

use crate::class::NumericsClass;
use crate::place::Bid;

/// What a load would take, as a worker says it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Fit {
    #[serde(default)]
    fits_alone: bool,
    #[serde(default)]
    class: Option<String>,
    #[serde(default)]
    bytes: Option<Footprint>,
    #[serde(default)]
    free_bytes: Option<u64>,
    #[serde(default)]
    tokens_per_second: Option<f64>,
    #[serde(default)]
    load_seconds: Option<f64>,
    #[serde(default)]
    placements: Vec<Placement>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Footprint {
    peak: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Placement {
    #[serde(default)]
    obstacle: Option<Obstacle>,
}

#[derive(Clone, Debug, Deserialize)]
struct Obstacle {
    code: String,
}

/// A bid, and whether it would fit if other models were unloaded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Offer {
    pub(super) bid: Bid,
    pub(super) fits_alone: bool,
}

impl Offer {
    /// Whether it fits beside the models that are loaded.
    pub(super) fn fits(&self) -> bool {
        self.bid.obstacles.is_empty() && self.bid.bytes <= self.bid.free_bytes
    }
}

impl Fit {
    /// The offer of a worker with this answer; `reserved` bytes are for loads that have begun there, and `class` is the
    /// class that the model had there.
    pub(super) fn offer(
        self,
        worker: &str,
        model: &str,
        reserved: u64,
        class: Option<NumericsClass>,
    ) -> Offer {
        let class = self.class.and_then(|class| class.parse().ok()).or(class);
        let mut obstacles = Vec::new();
        if self.bytes.is_none() {
            // No placement can be used.
            obstacles
                .extend(self.placements.into_iter().filter_map(|placement| Some(placement.obstacle?.code)));
            obstacles.dedup();
            if obstacles.is_empty() {
                obstacles.push("no_placement".to_owned());
            }
        }
        let number =
            |value: Option<f64>| value.filter(|value| value.is_finite() && *value >= 0.0).unwrap_or(0.0);
        let bid = Bid {
            worker: worker.to_owned(),
            model: model.to_owned(),
            bytes: self.bytes.map_or(0, |bytes| bytes.peak),
            free_bytes: self.free_bytes.map_or(u64::MAX, |free| free.saturating_sub(reserved)),
            rate: number(self.tokens_per_second),
            load_seconds: number(self.load_seconds),
            class,
            obstacles,
        };
        Offer { bid, fits_alone: self.fits_alone }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offer(answer: serde_json::Value) -> Offer {
        serde_json::from_value::<Fit>(answer).unwrap().offer("w", "m", 10, None)
    }

    #[test]
    fn the_answer_of_a_worker_is_a_bid() {
        let whole = offer(json!({
            "fits": true, "fits_alone": true, "loaded": false, "proved": true, "placement": "native/cpu/bf16",
            "bytes": { "resident": 80, "peak": 100 }, "free_bytes": 110, "tokens_per_second": 5000.0,
            "load_seconds": 2.5, "class": "461edade540d-half", "placements": [{ "placement": "a", "active": false }],
        }));
        assert!(whole.fits() && whole.fits_alone);
        assert_eq!(whole.bid.class, "461edade540d-half".parse().ok());
        let Bid { bytes, free_bytes, rate, load_seconds, .. } = whole.bid;
        assert_eq!((bytes, free_bytes, rate, load_seconds), (100, 100, 5000.0, 2.5));
        let full =
            offer(json!({ "fits_alone": true, "bytes": { "resident": 1, "peak": 101 }, "free_bytes": 110 }));
        assert!(!full.fits() && full.fits_alone && full.bid.rate == 0.0);
        let unlimited = offer(json!({ "bytes": { "resident": 1, "peak": 2 } }));
        assert!(unlimited.fits());
    }

    #[test]
    fn a_worker_without_a_usable_placement_names_its_obstacles() {
        let obstacle = |code: &str| json!({ "obstacle": { "code": code, "message": "why" } });
        let none = offer(json!({ "placements": [obstacle("not_built"), obstacle("not_built"), {}] }));
        assert!(!none.fits());
        assert_eq!(none.bid.obstacles, ["not_built"]);
        assert_eq!(offer(json!({})).bid.obstacles, ["no_placement"]);
    }
}
