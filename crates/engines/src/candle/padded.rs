//! Attention with Candle's own ops: sequences are padded per length bucket. Without a KV cache they attend to themselves.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use sconce_core::batch::{Batch, CachedSequence, Sequence};
use sconce_kernels::attention::AttentionMask;

use super::disentangled::PaddedRelativeProjections;
use super::kv_cache;
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
    /// Queries per sequence.
    queries: usize,
    /// Keys per sequence.
    keys: usize,
    /// For each padded query, its row in the batch.
    query_rows: Tensor,
    /// For each padded key, its row in the batch, or in the KV cache.
    key_rows: Tensor,
    /// `[count, 1, 1 or queries, keys]`, added to the scores.
    mask: Tensor,
    /// `[1, 1 or heads, queries, keys]`, added to the scores.
    shared: Option<Tensor>,
}

impl PaddedAttention {
    /// Self-attention of whole sequences.
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
            let rows = Tensor::new(rows, device)?;
            buckets.push(Bucket {
                count,
                queries: length,
                keys: length,
                query_rows: rows.clone(),
                key_rows: rows,
                mask: Tensor::from_vec(padding, (count, 1, 1, length), device)?,
                shared: shared(length, heads.heads, mask, biases, device)?,
            });
        }
        Ok(PaddedAttention { buckets, back: Tensor::new(back, device)?, heads })
    }

    /// Causal attention of a step to the KV cache. A bucket has sequences of equally many queries and of similar contexts;
    /// keys before the attention window are left out.
    pub(super) fn cached(
        batch: &Batch,
        heads: HeadLayout,
        mask: AttentionMask,
        device: &Device,
    ) -> Result<PaddedAttention> {
        let seen = |position: usize| mask.keys(position, position + 1);
        let context = |member: usize| {
            let CachedSequence { length, .. } = batch.cached[member];
            seen(length).start..length + batch.sequences[member].length
        };
        let mut by_queries: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (member, sequence) in batch.sequences.iter().enumerate() {
            by_queries.entry(sequence.length).or_default().push(member);
        }
        let mut back = vec![0u32; batch.tokens()];
        let mut first = 0u32;
        let mut buckets = Vec::new();
        for (queries, group) in by_queries {
            let contexts: Vec<usize> = group.iter().map(|&member| context(member).len()).collect();
            for members in length_buckets(&contexts) {
                let keys = members.iter().map(|&m| contexts[m]).max().unwrap_or(0);
                let mut query_rows = Vec::with_capacity(members.len() * queries);
                let mut key_rows = Vec::with_capacity(members.len() * keys);
                let mut additive = vec![MASKED; members.len() * queries * keys];
                let mut masks = additive.chunks_exact_mut(keys);
                for member in members.iter().map(|&m| group[m]) {
                    let CachedSequence { length, blocks, .. } = &batch.cached[member];
                    let (start, context) = (batch.sequences[member].start, context(member));
                    let last = context.end - 1;
                    let padded = context.start..context.start + keys;
                    key_rows.extend(padded.map(|position| kv_cache::row(blocks, position.min(last)) as u32));
                    for (query, mask) in (0..queries).zip(&mut masks) {
                        let seen = seen(length + query);
                        mask[seen.start - context.start..seen.end - context.start].fill(0.0);
                        query_rows.push((start + query) as u32);
                        back[start + query] = first;
                        first += 1;
                    }
                }
                let count = members.len();
                buckets.push(Bucket {
                    count,
                    queries,
                    keys,
                    query_rows: Tensor::new(query_rows, device)?,
                    key_rows: Tensor::new(key_rows, device)?,
                    mask: Tensor::from_vec(additive, (count, 1, queries, keys), device)?,
                    shared: None,
                });
            }
        }
        Ok(PaddedAttention { buckets, back: Tensor::new(back, device)?, heads })
    }

    /// Attention of scaled queries, `[tokens, heads · head_dim]`, like the result, to the rows of keys and values, which
    /// have the KV heads.
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
            let Bucket { count, queries: asking, keys: context, .. } = *bucket;
            // index_select of a non-contiguous view is silently wrong on Metal.
            let pick = |rows: &Tensor, of: &Tensor, heads: usize| -> Result<Tensor> {
                let picked = rows.contiguous()?.index_select(of, 0)?.to_dtype(dtype)?;
                picked.reshape((count, (), heads, width))
            };
            // The queries that share a KV head are rows of one product.
            let grouped = (count, kv_heads, heads / kv_heads * asking, ());
            let queries = pick(queries, &bucket.query_rows, heads)?.transpose(1, 2)?.contiguous()?;
            let keys = pick(keys, &bucket.key_rows, kv_heads)?;
            let values = pick(values, &bucket.key_rows, kv_heads)?.transpose(1, 2)?.contiguous()?;
            let scores = queries.reshape(grouped)?.matmul(&keys.permute((0, 2, 3, 1))?.contiguous()?)?;
            let mut scores = scores.to_dtype(DType::F32)?.reshape((count, heads, asking, context))?;
            if let Some(cap) = softcap {
                scores = ((scores / cap)?.tanh()? * cap)?;
            }
            scores = scores.broadcast_add(&bucket.mask)?;
            if let Some(shared) = &bucket.shared {
                scores = scores.broadcast_add(shared)?;
            }
            if let Some(relative) = relative {
                scores = (scores + relative.scores(&queries, &keys.transpose(1, 2)?.contiguous()?)?)?;
            }
            let weights = softmax_last_dim(&scores)?.to_dtype(dtype)?.reshape(grouped)?;
            let context = weights.matmul(&values)?.reshape((count, heads, asking, width))?;
            parts.push(context.transpose(1, 2)?.contiguous()?.reshape((count * asking, heads * width))?);
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
