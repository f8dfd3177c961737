//! Attention for devices with Candle's own ops alone: sequences of like length are padded to a common one.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use sconce_core::batch::Sequence;

use crate::relative::Relative;

/// Added to the scores of padding: far below any score, and finite so that nothing becomes NaN.
const MASKED: f32 = -1e30;

/// The sequences of one batch laid out for padded attention; made once and used by every layer.
pub(super) struct PaddedAttention {
    buckets: Vec<Bucket>,
    /// For each token of the batch its row among the buckets' rows.
    back: Tensor,
    heads: usize,
    head: usize,
}

struct Bucket {
    count: usize,
    length: usize,
    /// For each padded token the row of the batch it repeats.
    rows: Tensor,
    /// `[count, 1 or heads, 1 or length, length]`, added to the scores.
    mask: Tensor,
}

impl PaddedAttention {
    pub(super) fn new(
        sequences: &[Sequence],
        heads: usize,
        head: usize,
        relative: Option<&Relative>,
        device: &Device,
    ) -> Result<PaddedAttention> {
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.length).collect();
        let mut back = vec![0u32; lengths.iter().sum()];
        let mut first = 0u32;
        let mut buckets = Vec::new();
        for members in alike(&lengths) {
            let (count, length) = (members.len(), members.iter().map(|&m| lengths[m]).max().unwrap_or(0));
            let mut rows = Vec::with_capacity(count * length);
            let mut mask = Vec::with_capacity(count * length);
            for &member in &members {
                let Sequence { start, length: own, .. } = sequences[member];
                rows.extend((0..length).map(|t| (start + t.min(own - 1)) as u32));
                mask.extend((0..length).map(|t| if t < own { 0.0 } else { MASKED }));
                for t in 0..own {
                    back[start + t] = first + t as u32;
                }
                first += length as u32;
            }
            let mut mask = Tensor::from_vec(mask, (count, 1, 1, length), device)?;
            if let Some(relative) = relative {
                let bias =
                    (0..heads).flat_map(|h| (0..length).flat_map(move |q| &relative.head(h).of(q)[..length]));
                let bias = Tensor::from_iter(bias.copied(), device)?.reshape((1, heads, length, length))?;
                mask = mask.broadcast_add(&bias)?;
            }
            buckets.push(Bucket { count, length, rows: Tensor::new(rows, device)?, mask });
        }
        Ok(PaddedAttention { buckets, back: Tensor::new(back, device)?, heads, head })
    }

    /// Self-attention; queries, keys and values are `[tokens, hidden]`, queries scaled, and so is the result.
    pub(super) fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
        let hidden = self.heads * self.head;
        let dtype = queries.dtype();
        let mut parts = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            // index_select of a view that is not contiguous is silently wrong on Metal, so every one is made so.
            let pick = |rows: &Tensor| -> Result<Tensor> {
                let picked = rows.contiguous()?.index_select(&bucket.rows, 0)?;
                picked
                    .reshape((bucket.count, bucket.length, self.heads, self.head))?
                    .transpose(1, 2)?
                    .contiguous()
            };
            let scores =
                pick(queries)?.matmul(&pick(keys)?.transpose(D::Minus2, D::Minus1)?.contiguous()?)?;
            let scores = scores.to_dtype(DType::F32)?.broadcast_add(&bucket.mask)?;
            let mixed = softmax_last_dim(&scores)?.to_dtype(dtype)?.matmul(&pick(values)?)?;
            parts.push(mixed.transpose(1, 2)?.contiguous()?.reshape((bucket.count * bucket.length, hidden))?);
        }
        Tensor::cat(&parts, 0)?.contiguous()?.index_select(&self.back, 0)
    }
}

/// Sorts sequences into buckets in which padding to the longest adds at most an eighth.
fn alike(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&member| lengths[member]);
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut tokens = 0;
    for member in order {
        let length = lengths[member];
        match buckets.last_mut() {
            Some(bucket) if 8 * (bucket.len() + 1) * length <= 9 * (tokens + length) => {
                bucket.push(member);
                tokens += length;
            }
            Some(_) | None => {
                buckets.push(vec![member]);
                tokens = length;
            }
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_every_sequence_once_and_pad_little() {
        let lengths = [512, 3, 3, 17, 511, 1, 16, 300, 18, 2];
        let buckets = alike(&lengths);
        let mut members: Vec<usize> = buckets.iter().flatten().copied().collect();
        members.sort_unstable();
        assert_eq!(members, (0..lengths.len()).collect::<Vec<_>>());
        for bucket in &buckets {
            let longest = bucket.iter().map(|&m| lengths[m]).max().expect("not empty");
            let tokens: usize = bucket.iter().map(|&m| lengths[m]).sum();
            assert!(8 * longest * bucket.len() <= 9 * tokens, "{bucket:?}");
        }
    }
}
