//! The paged KV cache of a decoder, and attention over it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use sconce_core::batch::Batch;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::paged::{BlockLayout, CacheElement, PagedAttention, PagedQueries, PagedScratch};

use super::matrix::Cpu;
use crate::description::Description;

/// Parameters of attention over the cache.
pub(super) struct CachedAttention<'a> {
    pub(super) mask: AttentionMask,
    /// Factor of attention scores.
    pub(super) scale: f32,
    /// Scores are squashed into this range by tanh.
    pub(super) softcap: Option<f32>,
    pub(super) cpu: Cpu<'a>,
}

/// Cached keys and values of all layers.
pub(super) struct KvCache<T> {
    layout: BlockLayout,
    layers: Vec<LayerCache<T>>,
}

/// Cached keys and values of one layer, block by block.
#[derive(Clone, Default)]
struct LayerCache<T> {
    keys: Vec<T>,
    values: Vec<T>,
}

impl<T: CacheElement> KvCache<T> {
    /// An empty cache.
    pub(super) fn new(d: &Description) -> KvCache<T> {
        let layout = BlockLayout { kv_heads: d.kv_heads, head_dim: d.head_dim };
        KvCache { layout, layers: vec![LayerCache::default(); d.layers] }
    }

    /// Bytes of a block, over all layers.
    pub(super) fn block_bytes(&self) -> usize {
        2 * self.layers.len() * self.layout.values() * size_of::<T>()
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.keys.len() / self.layout.values())
    }

    /// Resizes to `blocks` blocks. Returns whether there was memory for it.
    pub(super) fn reserve(&mut self, blocks: usize) -> bool {
        let values = blocks.saturating_mul(self.layout.values());
        // The system maps zeroed memory on first use: unused blocks take none.
        let allocate = || {
            let fits = Vec::<T>::new().try_reserve_exact(values).is_ok();
            fits.then(|| vec![T::default(); values])
        };
        for layer in &mut self.layers {
            *layer = LayerCache::default();
        }
        for layer in &mut self.layers {
            let (Some(keys), Some(values)) = (allocate(), allocate()) else { return false };
            *layer = LayerCache { keys, values };
        }
        true
    }

    /// Copies whole blocks, from the first of each pair to the second.
    pub(super) fn copy(&mut self, pairs: &[(u32, u32)]) {
        let size = self.layout.values();
        for layer in &mut self.layers {
            for &(from, to) in pairs {
                let place = from as usize * size..(from as usize + 1) * size;
                layer.keys.copy_within(place.clone(), to as usize * size);
                layer.values.copy_within(place, to as usize * size);
            }
        }
    }

    /// Stores the keys and values of a token, `[kv_heads, stride]` each, of which the first `head_dim` values of a head
    /// are stored.
    pub(super) fn store(
        &mut self,
        layer: usize,
        blocks: &[u32],
        position: usize,
        [keys, values]: [&[T]; 2],
        stride: usize,
    ) {
        let (layout, layer) = (self.layout, &mut self.layers[layer]);
        for head in 0..layout.kv_heads {
            let own = head * stride..head * stride + layout.head_dim;
            for (at, x) in layout.key(blocks, position, head).zip(&keys[own.clone()]) {
                layer.keys[at] = *x;
            }
            layer.values[layout.value(blocks, position, head)].copy_from_slice(&values[own]);
        }
    }

    /// Stores the keys and values of a token, `[kv_heads, head_dim]` each, rounded to the dtype of the cache.
    pub(super) fn store_f32(
        &mut self,
        layer: usize,
        blocks: &[u32],
        position: usize,
        [keys, values]: [&[f32]; 2],
    ) {
        let (layout, layer) = (self.layout, &mut self.layers[layer]);
        for head in 0..layout.kv_heads {
            let own = head * layout.head_dim..(head + 1) * layout.head_dim;
            for (at, x) in layout.key(blocks, position, head).zip(&keys[own.clone()]) {
                layer.keys[at] = T::narrow(*x);
            }
            let to = layer.values[layout.value(blocks, position, head)].iter_mut();
            to.zip(&values[own]).for_each(|(to, x)| *to = T::narrow(*x));
        }
    }

    /// Attention of all tokens of `batch`, whose keys and values are stored, into `output`, `[tokens, heads · head_dim]`.
    /// `queries` of a token are contiguous; tokens are `stride` apart.
    pub(super) fn attend(
        &self,
        layer: usize,
        batch: &Batch,
        how: &CachedAttention<'_>,
        (queries, stride): (&[f32], usize),
        output: &mut [f32],
    ) {
        let width = output.len() / batch.tokens();
        let (kv_heads, team) = (self.layout.kv_heads, how.cpu.team);
        let group = width / kv_heads;
        let most = (PagedAttention::<T>::queries(how.cpu.isa) * self.layout.head_dim / group).max(8);
        let is_long = batch.tokens() >= 2 * team.count() * most;
        let (mut tasks, mut few) = (Vec::new(), Vec::new());
        let mut rest = output;
        for (sequence, s) in batch.sequences.iter().enumerate() {
            for first in (0..s.length).step_by(most) {
                let count = (s.length - first).min(most);
                let (own, after) = rest.split_at_mut(count * width);
                rest = after;
                let task = AttentionTask { sequence, first, count, kv_heads: 0..kv_heads };
                if is_long {
                    tasks.push((task, own));
                } else if count == 1 {
                    // A single token is split by heads.
                    let heads = own.chunks_exact_mut(group).enumerate();
                    tasks.extend(heads.map(|(head, own)| (task.of_head(head), own)));
                } else {
                    few.push((task, own));
                }
            }
        }
        // The outputs of a head of several tokens are not contiguous: they are copied afterwards.
        let mut by_heads: Vec<Vec<f32>> = few.iter().map(|(_, own)| vec![0.0; own.len()]).collect();
        let mut all = Vec::with_capacity(tasks.len() + few.len() * kv_heads);
        for ((task, _), own) in few.iter().zip(&mut by_heads) {
            let heads = own.chunks_exact_mut(task.count * group).enumerate();
            all.extend(heads.map(|(head, own)| (task.of_head(head), own)));
        }
        all.append(&mut tasks);
        let scratches = Mutex::new(Vec::new());
        let free = || scratches.lock().unwrap_or_else(PoisonError::into_inner);
        team.each(all, |(task, output)| {
            let mut scratch = free().pop().unwrap_or_default();
            self.attend_task(layer, batch, how, (queries, stride, group), &task, &mut scratch, output);
            free().push(scratch);
        });
        for ((task, to), own) in few.into_iter().zip(&by_heads) {
            for (head, own) in own.chunks_exact(task.count * group).enumerate() {
                for (to, from) in to.chunks_exact_mut(width).zip(own.chunks_exact(group)) {
                    to[head * group..][..group].copy_from_slice(from);
                }
            }
        }
    }

    /// Attention of a task. Queries of a token are contiguous, tokens are `stride` apart, and a KV head has `group` values of
    /// queries.
    #[expect(clippy::too_many_arguments, reason = "queries and output of one task")]
    fn attend_task(
        &self,
        layer: usize,
        batch: &Batch,
        how: &CachedAttention<'_>,
        (queries, stride, group): (&[f32], usize, usize),
        task: &AttentionTask,
        scratch: &mut PagedScratch,
        output: &mut [f32],
    ) {
        let AttentionTask { sequence, first, count, ref kv_heads } = *task;
        let row = batch.sequences[sequence].start + first;
        let position = batch.cached_length(sequence) + first;
        let seen = |position: usize| how.mask.keys(position, position + 1);
        let positions: Vec<_> = (position..position + count).map(seen).collect();
        let stride_out = output.len() / count;
        for (index, kv_head) in kv_heads.clone().enumerate() {
            let attention = PagedAttention {
                keys: &self.layers[layer].keys[..],
                values: &self.layers[layer].values[..],
                layout: self.layout,
                blocks: &batch.cached[sequence].blocks,
                kv_head,
                scale: how.scale,
                softcap: how.softcap,
            };
            let queries = PagedQueries {
                positions: &positions,
                width: group,
                strides: [stride, stride_out],
                values: &queries[row * stride + kv_head * group..],
            };
            attention.attend(how.cpu.isa, queries, scratch, &mut output[index * group..]);
        }
    }
}

/// Attention of some tokens of a sequence.
#[derive(Clone)]
struct AttentionTask {
    sequence: usize,
    /// The first token, in the batch.
    first: usize,
    count: usize,
    kv_heads: Range<usize>,
}

impl AttentionTask {
    /// The part of one KV head.
    fn of_head(&self, head: usize) -> AttentionTask {
        AttentionTask { kv_heads: head..head + 1, ..self.clone() }
    }
}
