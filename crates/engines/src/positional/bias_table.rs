//! A table of relative position biases, in which a query's biases are a slice.

use sconce_kernels::attention::RelativeBias;

/// For each head the bias at every distance from `-(positions-1)` to `positions-1`.
pub(crate) struct BiasTable {
    positions: usize,
    table: Vec<f32>,
}

impl BiasTable {
    /// Tabulates `bias`, by head and distance, for all distances below `positions`.
    pub(crate) fn new(heads: usize, positions: usize, bias: impl Fn(usize, isize) -> f32) -> BiasTable {
        let distances = 2 * positions - 1;
        let mut table = vec![0.0; heads * distances];
        for (head, row) in table.chunks_exact_mut(distances).enumerate() {
            for (place, value) in row.iter_mut().enumerate() {
                *value = bias(head, place.cast_signed() - (positions.cast_signed() - 1));
            }
        }
        BiasTable { positions, table }
    }

    /// The biases of one head.
    pub(crate) fn head(&self, head: usize) -> RelativeBias<'_> {
        let distances = 2 * self.positions - 1;
        RelativeBias { positions: self.positions, values: &self.table[head * distances..][..distances] }
    }
}
