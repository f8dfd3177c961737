//! Disentangled attention with Candle's own ops.

use candle_core::{D, DType, Result, Tensor};

use super::load::{LoadError, Loader};
use crate::description::Description;
use crate::positional::disentangled::{DisentangledAttention, RelativeProjections};

/// A layer's projections of relative positions, `[1, heads, head_dim, buckets]`.
pub(super) struct PaddedRelativeProjections {
    keys: Option<Tensor>,
    queries: Option<Tensor>,
    scale: f64,
    disentangle: DisentangledAttention,
}

impl PaddedRelativeProjections {
    pub(super) fn load(
        from: &Loader<'_>,
        d: &Description,
        disentangle: &DisentangledAttention,
        relative: RelativeProjections,
    ) -> std::result::Result<PaddedRelativeProjections, LoadError> {
        let by_head = |rows: Vec<f32>| -> std::result::Result<Tensor, LoadError> {
            let table = from.table(rows, d.query_width())?;
            let by_head = table.reshape((1, 2 * disentangle.pos_ebd_size, d.heads, d.head_dim))?;
            Ok(by_head.permute((0, 2, 3, 1))?.contiguous()?)
        };
        Ok(PaddedRelativeProjections {
            keys: relative.keys.map(by_head).transpose()?,
            queries: relative.queries.map(by_head).transpose()?,
            scale: d.scale,
            disentangle: disentangle.clone(),
        })
    }

    /// The relative scores of scaled `queries` against `keys`, both `[count, heads, length, head_dim]`.
    pub(super) fn scores(&self, queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
        let (count, heads, length, _) = queries.dims4()?;
        let shape = (count, heads, length, length);
        let mut sum = Tensor::zeros(shape, DType::F32, queries.device())?;
        let gather = |content: &Tensor, relative: &Tensor, sign: isize| -> Result<Tensor> {
            let buckets = (0..length * length).map(|place| {
                let apart = (place / length).cast_signed() - (place % length).cast_signed();
                self.disentangle.bucket(sign * apart)
            });
            let buckets = Tensor::from_iter(buckets, queries.device())?.reshape((1, 1, length, length))?;
            let scores = content.broadcast_matmul(relative)?.to_dtype(DType::F32)?.contiguous()?;
            scores.gather(&buckets.broadcast_as(shape)?.contiguous()?, 3)
        };
        if let Some(relative) = &self.keys {
            sum = (sum + gather(queries, relative, 1)?)?;
        }
        if let Some(relative) = &self.queries {
            // Rows are keys here, so the distance has the opposite sign.
            let by_key = (gather(keys, relative, -1)? * self.scale)?;
            sum = (sum + by_key.transpose(D::Minus2, D::Minus1)?.contiguous()?)?;
        }
        Ok(sum)
    }
}
