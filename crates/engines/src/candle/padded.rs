//! Attention with Candle's own ops: sequences are padded per length bucket.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use sconce_core::batch::Sequence;
use sconce_kernels::attention::AttentionMask;

use super::disentangled::PaddedRelativeProjections;
use crate::head_layout::HeadLayout;
use crate::length_buckets::length_buckets;
use crate::positional::bias_table::BiasTable;

/// Added to the scores of padding: far below any score, and finite to avoid NaN.
const MASKED: f32 = -1e30;

/// The sequences of a batch, padded per bucket; built once per mask and used by every layer.
pub(super) struct PaddedAttention {
    buckets: Vec<Bucket>,
    /// For each token of the batch, its row among the buckets' rows.
    back: Tensor,
    heads: HeadLayout,
}

struct Bucket {
    count: usize,
    length: usize,
    /// For each padded token, the row of the batch that it copies.
    rows: Tensor,
    /// `[count, 1, 1, length]`, added to the scores.
    padding: Tensor,
    /// `[1, 1 or heads, length, length]`, added to the scores.
    shared: Option<Tensor>,
}

impl PaddedAttention {
    pub(super) fn new(
        sequences: &[Sequence],
        heads: HeadLayout,
        mask: AttentionMask,
        biases: Option<&BiasTable>,
        device: &Device,
    ) -> Result<PaddedAttention> {
        let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.length).collect();
        let mut back = vec![0u32; lengths.iter().sum()];
        let mut first = 0u32;
        let mut buckets = Vec::new();
        for members in length_buckets(&lengths) {
            let (count, length) = (members.len(), members.iter().map(|&m| lengths[m]).max().unwrap_or(0));
            let mut rows = Vec::with_capacity(count * length);
            let mut padding = Vec::with_capacity(count * length);
            for &member in &members {
                let Sequence { start, length: own, .. } = sequences[member];
                let seen = sequences[member].attended();
                rows.extend((0..length).map(|t| (start + t.min(own - 1)) as u32));
                padding.extend((0..length).map(|t| if t < seen { 0.0 } else { MASKED }));
                for t in 0..own {
                    back[start + t] = first + t as u32;
                }
                first += length as u32;
            }
            let padding = Tensor::from_vec(padding, (count, 1, 1, length), device)?;
            let shared = shared(length, heads.heads, mask, biases, device)?;
            buckets.push(Bucket { count, length, rows: Tensor::new(rows, device)?, padding, shared });
        }
        Ok(PaddedAttention { buckets, back: Tensor::new(back, device)?, heads })
    }

    /// Self-attention. Queries are scaled, `[tokens, heads · head_dim]`, like the result; keys and values have the KV
    /// heads.
    pub(super) fn attend(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        softcap: Option<f64>,
        relative: Option<&PaddedRelativeProjections>,
    ) -> Result<Tensor> {
        let HeadLayout { heads, kv_heads, head_dim: width } = self.heads;
        let dtype = queries.dtype();
        let mut parts = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            let Bucket { count, length, .. } = *bucket;
            // index_select of a non-contiguous view is silently wrong on Metal.
            let pick = |rows: &Tensor, heads: usize| -> Result<Tensor> {
                let picked = rows.contiguous()?.index_select(&bucket.rows, 0)?;
                picked.reshape((count, length, heads, width))?.transpose(1, 2)?.contiguous()
            };
            let pick_shared = |rows: &Tensor| -> Result<Tensor> {
                let picked = pick(rows, kv_heads)?;
                if kv_heads == heads {
                    return Ok(picked);
                }
                let each = (count, kv_heads, heads / kv_heads, length, width);
                picked.unsqueeze(2)?.broadcast_as(each)?.contiguous()?.reshape((count, heads, length, width))
            };
            let (queries, keys) = (pick(queries, heads)?, pick_shared(keys)?);
            let scores = queries.matmul(&keys.transpose(D::Minus2, D::Minus1)?.contiguous()?)?;
            let mut scores = scores.to_dtype(DType::F32)?;
            if let Some(cap) = softcap {
                scores = ((scores / cap)?.tanh()? * cap)?;
            }
            scores = scores.broadcast_add(&bucket.padding)?;
            if let Some(shared) = &bucket.shared {
                scores = scores.broadcast_add(shared)?;
            }
            if let Some(relative) = relative {
                scores = (scores + relative.scores(&queries, &keys)?)?;
            }
            let context = softmax_last_dim(&scores)?.to_dtype(dtype)?.matmul(&pick_shared(values)?)?;
            parts.push(context.transpose(1, 2)?.contiguous()?.reshape((count * length, heads * width))?);
        }
        Tensor::cat(&parts, 0)?.contiguous()?.index_select(&self.back, 0)
    }
}

/// The additive mask that all sequences of a bucket share: relative position biases, and the attention mask.
fn shared(
    length: usize,
    heads: usize,
    mask: AttentionMask,
    biases: Option<&BiasTable>,
    device: &Device,
) -> Result<Option<Tensor>> {
    let seen = |query: usize| mask.keys(query, length);
    let all = (0..length).all(|query| seen(query) == (0..length));
    if all && biases.is_none() {
        return Ok(None);
    }
    let planes = if biases.is_some() { heads } else { 1 };
    let mut additive = Vec::with_capacity(planes * length * length);
    for head in 0..planes {
        for query in 0..length {
            let (row, seen) = (additive.len(), seen(query));
            additive.resize(row + length, MASKED);
            match biases {
                Some(biases) => {
                    let bias = &biases.head(head).row(query)[seen.clone()];
                    additive[row + seen.start..row + seen.end].copy_from_slice(bias);
                }
                None => additive[row + seen.start..row + seen.end].fill(0.0),
            }
        }
    }
    Tensor::from_vec(additive, (1, planes, length, length), device).map(Some)
}
