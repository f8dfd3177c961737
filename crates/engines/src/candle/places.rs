//! Disentangled attention with Candle's own ops.

use candle_core::{D, DType, Result, Tensor};

use super::load::{LoadError, Loader};
use crate::description::Description;
use crate::parts::disentangled::{Disentangle, Places};

/// A layer's projections of distances, `[1, heads, head, kinds]`.
pub(super) struct PaddedPlaces {
    keys: Option<Tensor>,
    queries: Option<Tensor>,
    scale: f64,
    disentangle: Disentangle,
}

impl PaddedPlaces {
    pub(super) fn load(
        from: &Loader<'_>,
        d: &Description,
        disentangle: &Disentangle,
        places: Places,
    ) -> std::result::Result<PaddedPlaces, LoadError> {
        let by_head = |rows: Vec<f32>| -> std::result::Result<Tensor, LoadError> {
            let table = from.table(rows, d.query_width())?;
            let by_head = table.reshape((1, 2 * disentangle.span, d.heads, d.head))?;
            Ok(by_head.permute((0, 2, 3, 1))?.contiguous()?)
        };
        Ok(PaddedPlaces {
            keys: places.keys.map(by_head).transpose()?,
            queries: places.queries.map(by_head).transpose()?,
            scale: d.scale,
            disentangle: disentangle.clone(),
        })
    }

    /// What is added to the scores of `queries`, which are scaled, against `keys`: both `[count, heads, length, head]`.
    pub(super) fn scores(&self, queries: &Tensor, keys: &Tensor) -> Result<Tensor> {
        let (count, heads, length, _) = queries.dims4()?;
        let shape = (count, heads, length, length);
        let mut sum = Tensor::zeros(shape, DType::F32, queries.device())?;
        let gather = |content: &Tensor, places: &Tensor, sign: isize| -> Result<Tensor> {
            let kinds = (0..length * length).map(|place| {
                let apart = (place / length).cast_signed() - (place % length).cast_signed();
                self.disentangle.kind(sign * apart)
            });
            let kinds = Tensor::from_iter(kinds, queries.device())?.reshape((1, 1, length, length))?;
            let scores = content.broadcast_matmul(places)?.to_dtype(DType::F32)?.contiguous()?;
            scores.gather(&kinds.broadcast_as(shape)?.contiguous()?, 3)
        };
        if let Some(places) = &self.keys {
            sum = (sum + gather(queries, places, 1)?)?;
        }
        if let Some(places) = &self.queries {
            // Rows are keys here, and so the distance is the other way round.
            let by_key = (gather(keys, places, -1)? * self.scale)?;
            sum = (sum + by_key.transpose(D::Minus2, D::Minus1)?.contiguous()?)?;
        }
        Ok(sum)
    }
}
