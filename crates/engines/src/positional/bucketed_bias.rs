//! Relative position bias by logarithmic buckets of distances: MPNet and T5.

use serde::Serialize;

/// Logarithmic buckets of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BucketedBias {
    /// Number of buckets, for both directions together.
    pub count: usize,
    /// Distances from here on share the last bucket.
    pub max_distance: usize,
}

impl BucketedBias {
    /// The bucket of a key that is `distance` tokens after the query.
    pub fn of(&self, distance: isize) -> usize {
        let half = self.count / 2;
        let after = if distance > 0 { half } else { 0 };
        let exact = half / 2;
        let away = distance.unsigned_abs();
        if away < exact {
            return after + away;
        }
        let scale = (self.max_distance as f32 / exact as f32).ln();
        let beyond = (away as f32 / exact as f32).ln() / scale * (half - exact) as f32;
        after + (exact + beyond as usize).min(half - 1)
    }

    /// The bias of a head at `distance`, from `weights`, `[buckets, heads]`.
    pub(crate) fn bias(&self, weights: &[f32], heads: usize, head: usize, distance: isize) -> f32 {
        weights[self.of(distance) * heads + head]
    }
}
