//! L2 norms and normalization of outputs.

use sconce_core::batch::Rows;
use sconce_core::card::{Pooling, PoolingMode};

/// Computes the norms of the rows and L2-normalizes them if `normalizes`.
pub(crate) fn normalized(width: usize, mut values: Vec<f32>, normalizes: bool) -> Rows {
    let norms = l2_norms(&values, width);
    if normalizes {
        for (row, &norm) in values.chunks_exact_mut(width.max(1)).zip(&norms) {
            if norm > 0.0 {
                for x in row.iter_mut() {
                    *x /= norm;
                }
            }
        }
    }
    Rows { width, values, norms }
}

/// The L2 norm of each row.
pub(crate) fn l2_norms(values: &[f32], width: usize) -> Vec<f32> {
    let length = |row: &[f32]| row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
    values.chunks_exact(width.max(1)).map(length).collect()
}

/// The pooling of probes: first, maximum, mean and last vector, so that an error in any token shows.
pub(crate) fn probe_pooling() -> Pooling {
    let modes = vec![PoolingMode::Cls, PoolingMode::Max, PoolingMode::Mean, PoolingMode::LastToken];
    Pooling { modes, include_prompt: true }
}
