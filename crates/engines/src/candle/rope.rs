//! Rotary position embedding with Candle's own ops.

use candle_core::{Device, Result, Tensor};
use sconce_core::batch::Sequence;
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
    pub(super) fn new(rope_table: &RopeTable, sequences: &[Sequence], device: &Device) -> Result<BatchRope> {
        let RopeTable { cosines, sines, pairs, interleaved } = rope_table;
        let tokens: usize = sequences.iter().map(|sequence| sequence.length).sum();
        let repeated = |table: &[f32]| {
            let mut rows = Vec::with_capacity(tokens * pairs);
            for sequence in sequences {
                rows.extend_from_slice(&table[..sequence.length * pairs]);
            }
            Tensor::from_vec(rows, (tokens, 1, *pairs), device)
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
