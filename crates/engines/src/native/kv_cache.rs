//! The paged KV cache of a decoder, and attention over it.

use rayon::prelude::*;
use sconce_core::batch::Batch;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::isa::Isa;
use sconce_kernels::paged::{BlockLayout, CacheElement, PagedAttention};

use crate::description::Description;
use crate::step::BLOCK_SIZE;

/// Parameters of attention over the cache.
pub(super) struct CachedAttention {
    pub(super) mask: AttentionMask,
    /// Factor of attention scores.
    pub(super) scale: f32,
    /// Scores are squashed into this range by tanh.
    pub(super) softcap: Option<f32>,
    pub(super) isa: Isa,
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
        let layout = BlockLayout { block_size: BLOCK_SIZE, kv_heads: d.kv_heads, head_dim: d.head_dim };
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
            let place = layout.token(blocks, position, head);
            layer.keys[place.clone()].copy_from_slice(&keys[head * stride..][..layout.head_dim]);
            layer.values[place].copy_from_slice(&values[head * stride..][..layout.head_dim]);
        }
    }

    /// Stores the keys and values of a token, `[kv_heads, head_dim]` each, rounded to the dtype of the cache.
    pub(super) fn store_f32(&mut self, layer: usize, blocks: &[u32], position: usize, rows: [&[f32]; 2]) {
        let (layout, layer) = (self.layout, &mut self.layers[layer]);
        for head in 0..layout.kv_heads {
            let place = layout.token(blocks, position, head);
            let own = head * layout.head_dim..(head + 1) * layout.head_dim;
            for (to, from) in [&mut layer.keys, &mut layer.values].into_iter().zip(rows) {
                let to = to[place.clone()].iter_mut();
                to.zip(&from[own.clone()]).for_each(|(to, x)| *to = T::narrow(*x));
            }
        }
    }

    /// Attention of all tokens of `batch`, whose keys and values are stored, into `output`, `[tokens, heads · head_dim]`.
    /// `queries` of a token are contiguous; tokens are `stride` apart.
    pub(super) fn attend(
        &self,
        layer: usize,
        batch: &Batch,
        how: &CachedAttention,
        (queries, stride): (&[f32], usize),
        output: &mut [f32],
    ) {
        let (layout, layer) = (self.layout, &self.layers[layer]);
        let tokens: Vec<(usize, usize)> = batch
            .sequences
            .iter()
            .enumerate()
            .flat_map(|(index, sequence)| {
                let first = batch.cached_length(index);
                (0..sequence.length).map(move |token| (index, first + token))
            })
            .collect();
        let group = output.len() / tokens.len() / layout.kv_heads;
        output.par_chunks_exact_mut(group).enumerate().for_each_init(Vec::new, |scores, (index, output)| {
            let (token, kv_head) = (index / layout.kv_heads, index % layout.kv_heads);
            let (sequence, position) = tokens[token];
            let seen = how.mask.keys(position, position + 1);
            let attention = PagedAttention {
                keys: &layer.keys[..],
                values: &layer.values[..],
                layout,
                blocks: &batch.cached[sequence].blocks,
                kv_head,
                positions: (seen.start, seen.end),
                scale: how.scale,
                softcap: how.softcap,
            };
            let queries = &queries[token * stride + kv_head * group..][..group];
            attention.attend(how.isa, queries, scores, output);
        });
    }
}
