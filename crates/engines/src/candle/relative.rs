//! A bias on attention by distance, spread out once so that a query's row of biases is a slice.

use crate::description::RelativeBias;

/// For each head the bias at every distance from `-(positions-1)` to `positions-1`.
pub(super) struct Relative {
    positions: usize,
    table: Vec<f32>,
}

impl Relative {
    /// Spreads `weights`, `[buckets, heads]`, over all distances up to `positions`.
    pub(super) fn new(bias: RelativeBias, weights: &[f32], heads: usize, positions: usize) -> Relative {
        let distances = 2 * positions - 1;
        let mut table = vec![0.0; heads * distances];
        for (head, row) in table.chunks_exact_mut(distances).enumerate() {
            for (place, value) in row.iter_mut().enumerate() {
                let distance = place.cast_signed() - (positions.cast_signed() - 1);
                *value = weights[bias.bucket(distance) * heads + head];
            }
        }
        Relative { positions, table }
    }

    /// The biases of one head.
    pub(super) fn head(&self, head: usize) -> HeadBias<'_> {
        let distances = 2 * self.positions - 1;
        HeadBias { positions: self.positions, row: &self.table[head * distances..][..distances] }
    }
}

/// The biases of one head.
#[derive(Clone, Copy)]
pub(super) struct HeadBias<'a> {
    positions: usize,
    row: &'a [f32],
}

impl<'a> HeadBias<'a> {
    /// The biases of the keys 0, 1, 2, … for the query at `position`.
    pub(super) fn of(self, position: usize) -> &'a [f32] {
        &self.row[self.positions - 1 - position..]
    }
}
