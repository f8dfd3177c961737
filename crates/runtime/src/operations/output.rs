//! Engine output of one sequence.

use super::token_weight::{TokenWeight, nonzero_weights};

/// JSON size of a value and of a token weight in bytes, at least.
const VALUE_BYTES: usize = 12;
const WEIGHT_BYTES: usize = 24;

/// Engine output of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceOutput {
    /// Rows as computed.
    Dense {
        /// Values of all rows.
        values: Vec<f32>,
        /// Norm of the first row before normalization, if the engine reports it.
        norm: Option<f32>,
    },
    /// Nonzero weights of a sparse row.
    Sparse(Vec<TokenWeight>),
}

impl SequenceOutput {
    /// Stores the rows of a sequence. A `sparse` row is reduced to its nonzero weights.
    pub fn new(values: &[f32], norm: Option<f32>, sparse: bool) -> SequenceOutput {
        if sparse {
            SequenceOutput::Sparse(nonzero_weights(values))
        } else {
            SequenceOutput::Dense { values: values.to_vec(), norm }
        }
    }

    /// The values of dense rows; empty for sparse rows.
    pub fn values(&self) -> &[f32] {
        match self {
            SequenceOutput::Dense { values, .. } => values,
            SequenceOutput::Sparse(_) => &[],
        }
    }

    /// The weights of a sparse row.
    pub fn into_weights(self) -> Vec<TokenWeight> {
        match self {
            SequenceOutput::Dense { values, .. } => nonzero_weights(&values),
            SequenceOutput::Sparse(weights) => weights,
        }
    }

    /// Size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            SequenceOutput::Dense { values, .. } => size_of_val(values.as_slice()),
            SequenceOutput::Sparse(weights) => size_of_val(weights.as_slice()),
        }
    }

    /// Estimated size as JSON, in bytes.
    pub fn json_bytes(&self) -> usize {
        match self {
            SequenceOutput::Dense { values, .. } => VALUE_BYTES * values.len(),
            SequenceOutput::Sparse(weights) => WEIGHT_BYTES * weights.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_rows_keep_only_their_weights() {
        let row = [0.0, 1.5, 0.0, 2.0];
        let dense = SequenceOutput::new(&row, Some(2.5), false);
        let sparse = SequenceOutput::new(&row, Some(2.5), true);
        assert_eq!((dense.values(), dense.bytes(), dense.json_bytes()), (&row[..], 16, 48));
        assert_eq!((sparse.values(), sparse.bytes(), sparse.json_bytes()), (&[][..], 16, 48));
        assert_eq!(dense.into_weights(), sparse.into_weights());
    }
}
