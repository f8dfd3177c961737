//! A bias on attention by distance, spread out once so that a query's row of biases is a slice.

use sconce_kernels::attention::Distances;

use crate::description::RelativeBias;

/// For each head the bias at every distance from `-(positions-1)` to `positions-1`.
pub(crate) struct Relative {
    positions: usize,
    table: Vec<f32>,
}

impl Relative {
    /// Spreads `weights`, `[buckets, heads]`, over all distances up to `positions`.
    pub(crate) fn new(bias: RelativeBias, weights: &[f32], heads: usize, positions: usize) -> Relative {
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
    pub(crate) fn head(&self, head: usize) -> Distances<'_> {
        let distances = 2 * self.positions - 1;
        Distances { positions: self.positions, row: &self.table[head * distances..][..distances] }
    }
}
