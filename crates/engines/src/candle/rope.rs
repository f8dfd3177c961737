//! Rotary position embedding with Candle's own ops.

use candle_core::{Device, Result, Tensor};
use sconce_kernels::rope::RopeTable;

/// Cosines and sines of every token of a batch.
pub(super) struct BatchRope {
    /// `[tokens, 1, pairs]`.
    cosines: Tensor,
    sines: Tensor,
    pairs: usize,
    interleaved: bool,
}

impl BatchRope {
    /// The rotary embedding of tokens at these positions.
    pub(super) fn new(rope_table: &RopeTable, positions: &[usize], device: &Device) -> Result<BatchRope> {
        let RopeTable { cosines, sines, pairs, interleaved } = rope_table;
        let repeated = |table: &[f32]| {
            let rows = positions.iter().flat_map(|position| &table[position * pairs..][..*pairs]);
            Tensor::from_vec(rows.copied().collect::<Vec<f32>>(), (positions.len(), 1, *pairs), device)
        };
        Ok(BatchRope {
            cosines: repeated(cosines)?,
            sines: repeated(sines)?,
            pairs: *pairs,
            interleaved: *interleaved,
        })
    }

    /// Rotates `x`, `[tokens, heads, head_dim]`.
    pub(super) fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (tokens, heads, head) = x.dims3()?;
        let rotated = 2 * self.pairs;
        let part = x.narrow(2, 0, rotated)?.contiguous()?;
        let side = |which: usize| -> Result<Tensor> {
            if self.interleaved {
                part.reshape((tokens, heads, self.pairs, 2))?.narrow(3, which, 1)?.squeeze(3)?.contiguous()
            } else {
                part.narrow(2, which * self.pairs, self.pairs)?.contiguous()
            }
        };
        let (a, b) = (side(0)?, side(1)?);
        let first = (a.broadcast_mul(&self.cosines)? - b.broadcast_mul(&self.sines)?)?;
        let second = (b.broadcast_mul(&self.cosines)? + a.broadcast_mul(&self.sines)?)?;
        let part = if self.interleaved {
            Tensor::stack(&[first, second], 3)?.reshape((tokens, heads, rotated))?
        } else {
            Tensor::cat(&[first, second], 2)?
        };
        if rotated == head {
            return Ok(part);
        }
        Tensor::cat(&[part, x.narrow(2, rotated, head - rotated)?.contiguous()?], 2)
    }
}
