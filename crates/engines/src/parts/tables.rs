//! A bias on attention by distance, spread out once so that a query's row of biases is a slice.

use sconce_kernels::attention::Distances;

/// For each head the bias at every distance from `-(positions-1)` to `positions-1`.
pub(crate) struct Biases {
    positions: usize,
    table: Vec<f32>,
}

impl Biases {
    /// Spreads `bias`, by head and distance, over all distances up to `positions`.
    pub(crate) fn new(heads: usize, positions: usize, bias: impl Fn(usize, isize) -> f32) -> Biases {
        let distances = 2 * positions - 1;
        let mut table = vec![0.0; heads * distances];
        for (head, row) in table.chunks_exact_mut(distances).enumerate() {
            for (place, value) in row.iter_mut().enumerate() {
                *value = bias(head, place.cast_signed() - (positions.cast_signed() - 1));
            }
        }
        Biases { positions, table }
    }

    /// The biases of one head.
    pub(crate) fn head(&self, head: usize) -> Distances<'_> {
        let distances = 2 * self.positions - 1;
        Distances { positions: self.positions, row: &self.table[head * distances..][..distances] }
    }
}
