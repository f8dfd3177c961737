//! Pooling on the device: only pooled rows leave it.

use candle_core::{Result, Tensor};
use sconce_core::batch::{Rows, Sequence};
use sconce_core::card::PoolingMode;

use crate::loaded_head::{LoadedHead, skipped};

/// One row per sequence from `hidden`, `[tokens, hidden]`.
pub(super) fn rows(head: &LoadedHead, hidden: &Tensor, sequences: &[Sequence]) -> Result<Rows> {
    let Some(pooling) = head.pooling() else {
        return Ok(head.rows(&hidden.flatten_all()?.to_vec1()?, hidden.dim(1)?, sequences));
    };
    let mut pooled = Vec::with_capacity(sequences.len());
    for sequence in sequences {
        let modes =
            pooling.modes.iter().map(|&mode| pool(hidden, sequence, mode, skipped(pooling, sequence)));
        pooled.push(Tensor::cat(&modes.collect::<Result<Vec<_>>>()?, 1)?);
    }
    let pooled = Tensor::cat(&pooled, 0)?;
    Ok(head.after_pooling(pooled.flatten_all()?.to_vec1()?, pooled.dim(1)?))
}

/// Pools by one mode: `[1, hidden]`.
fn pool(hidden: &Tensor, sequence: &Sequence, mode: PoolingMode, skip: usize) -> Result<Tensor> {
    let (start, count) = (sequence.start + skip, sequence.length - skip);
    let weighted = |weights: Vec<f32>| {
        let weights = Tensor::from_vec(weights, (1, count), hidden.device())?;
        weights.matmul(&hidden.narrow(0, start, count)?)
    };
    match mode {
        PoolingMode::Cls => hidden.narrow(0, start, 1),
        PoolingMode::LastToken => hidden.narrow(0, sequence.start + sequence.length - 1, 1),
        PoolingMode::Max => hidden.narrow(0, start, count)?.contiguous()?.max_keepdim(0),
        PoolingMode::Mean => weighted(vec![1.0 / count as f32; count]),
        PoolingMode::MeanSqrtLen => weighted(vec![1.0 / (count as f32).sqrt(); count]),
        PoolingMode::WeightedMean => {
            let positions = skip + 1..=sequence.length;
            let total: f32 = positions.clone().map(|position| position as f32).sum();
            weighted(positions.map(|position| position as f32 / total).collect())
        }
    }
}
