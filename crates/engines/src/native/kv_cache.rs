//! The paged KV cache of a decoder, and attention over it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use sconce_core::batch::Batch;
use sconce_core::card::KvCacheDtype;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::bf16::Bf16;
use sconce_kernels::isa::Isa;
use sconce_kernels::paged::{
    BLOCK_SIZE, BlockLayout, CacheElement, PagedAttention, PagedQueries, PagedScratch, Q8Cache,
};
use sconce_kernels::team::Team;

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

/// A batch whose tokens attend to cached keys.
pub(super) struct AttentionPart<'a> {
    pub(super) batch: &'a Batch,
    /// Queries of a token are contiguous; tokens are `stride` apart.
    pub(super) queries: &'a [f32],
    pub(super) stride: usize,
    /// What is computed, `[tokens, heads · head_dim]`.
    pub(super) output: &'a mut [f32],
}

/// Cached keys and values of all layers. Attention reads them as `T`.
pub(super) struct KvCache<T> {
    layout: BlockLayout,
    dtype: KvCacheDtype,
    layers: Vec<LayerCache<T>>,
}

/// Cached keys and values of one layer, block by block.
enum LayerCache<T> {
    Plain { keys: Vec<T>, values: Vec<T> },
    Q8(Q8Cache),
}

impl<T: CacheElement> LayerCache<T> {
    /// A cache of `blocks` blocks, if there is memory for it.
    fn with_blocks(layout: BlockLayout, dtype: KvCacheDtype, blocks: usize) -> Option<LayerCache<T>> {
        if dtype == KvCacheDtype::Q8_0 {
            return Q8Cache::with_blocks(layout, blocks).map(LayerCache::Q8);
        }
        let values = blocks.saturating_mul(layout.values());
        // The system maps zeroed memory on first use: unused blocks take none.
        let allocate = || {
            let fits = Vec::<T>::new().try_reserve_exact(values).is_ok();
            fits.then(|| vec![T::default(); values])
        };
        Some(LayerCache::Plain { keys: allocate()?, values: allocate()? })
    }
}

/// Scratch memory of attention.
#[derive(Default)]
struct Scratch<T> {
    attention: PagedScratch,
    widened: WidenedHead<T>,
}

/// Keys and values of one KV head of a quantized cache, and their block table.
#[derive(Default)]
struct WidenedHead<T> {
    keys: Vec<T>,
    values: Vec<T>,
    table: Vec<u32>,
}

impl<T: CacheElement> WidenedHead<T> {
    /// Widens `blocks` of one KV head, of which the first is block `first` of the sequence.
    fn widen(
        &mut self,
        cache: &Q8Cache,
        isa: Isa,
        layout: BlockLayout,
        (blocks, first): (&[u32], usize),
        kv_head: usize,
    ) {
        self.keys.clear();
        self.values.clear();
        cache.widen(isa, layout, (blocks, kv_head), [&mut self.keys, &mut self.values]);
        self.table.clear();
        self.table.resize(first, 0);
        self.table.extend(0..blocks.len() as u32);
    }
}

impl<T: CacheElement> KvCache<T> {
    /// An empty cache.
    pub(super) fn new(d: &Description) -> KvCache<T> {
        let layout = BlockLayout { kv_heads: d.kv_heads, head_dim: d.head_dim };
        let empty = || LayerCache::Plain { keys: Vec::new(), values: Vec::new() };
        let layers = std::iter::repeat_with(empty).take(d.layers).collect();
        KvCache { layout, dtype: d.kv_cache_dtype, layers }
    }

    /// Bytes of a block, over all layers.
    pub(super) fn block_bytes(&self) -> usize {
        let layer = match self.dtype {
            KvCacheDtype::Auto => 2 * self.layout.values() * size_of::<T>(),
            KvCacheDtype::Q8_0 => Q8Cache::block_bytes(self.layout),
        };
        self.layers.len() * layer
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.layers.first().map_or(0, |layer| match layer {
            LayerCache::Plain { keys, .. } => keys.len() / self.layout.values(),
            LayerCache::Q8(cache) => cache.blocks(self.layout),
        })
    }

    /// Resizes to `blocks` blocks. Returns whether there was memory for it.
    pub(super) fn reserve(&mut self, blocks: usize) -> bool {
        for layer in &mut self.layers {
            *layer = LayerCache::Plain { keys: Vec::new(), values: Vec::new() };
        }
        self.layers.iter_mut().all(|layer| {
            let reserved = LayerCache::with_blocks(self.layout, self.dtype, blocks);
            let fits = reserved.is_some();
            if let Some(reserved) = reserved {
                *layer = reserved;
            }
            fits
        })
    }

    /// Copies whole blocks, from the first of each pair to the second.
    pub(super) fn copy(&mut self, pairs: &[(u32, u32)]) {
        let size = self.layout.values();
        for layer in &mut self.layers {
            for &(from, to) in pairs {
                match layer {
                    LayerCache::Plain { keys, values } => {
                        let place = from as usize * size..(from as usize + 1) * size;
                        keys.copy_within(place.clone(), to as usize * size);
                        values.copy_within(place, to as usize * size);
                    }
                    LayerCache::Q8(cache) => cache.copy(self.layout, [from, to]),
                }
            }
        }
    }

    /// Stores the keys and values of all tokens of `batch`. `read` reads those of a KV head of a token.
    pub(super) fn store(
        &mut self,
        layer: usize,
        team: &Team,
        batch: &Batch,
        read: impl Fn(usize, usize, [&mut [T]; 2]) + Sync,
    ) {
        let layout = self.layout;
        let LayerCache::Plain { keys, values } = &mut self.layers[layer] else {
            return self.store_q8(layer, batch, read);
        };
        let mut keys = in_order(keys, layout.values());
        let mut values = in_order(values, layout.values());
        let blocks = tokens_by_block(batch).into_iter();
        let blocks = blocks.filter_map(|(block, tokens)| Some((keys(block)?, values(block)?, tokens)));
        let (head_dim, head_size) = (layout.head_dim, layout.head_dim * BLOCK_SIZE);
        team.each(team.in_parts(blocks.collect()), |part| {
            let mut key = vec![T::default(); head_dim];
            for (keys, values, tokens) in part {
                let heads = keys.chunks_exact_mut(head_size).zip(values.chunks_exact_mut(head_size));
                for (head, (keys, values)) in heads.enumerate() {
                    for &(row, place) in &tokens {
                        let value = &mut values[place * head_dim..][..head_dim];
                        read(row, head, [&mut key, value]);
                        let keys = keys.iter_mut().skip(place).step_by(BLOCK_SIZE);
                        keys.zip(&key).for_each(|(to, x)| *to = *x);
                    }
                }
            }
        });
    }

    /// The same for a quantized cache.
    fn store_q8(&mut self, layer: usize, batch: &Batch, read: impl Fn(usize, usize, [&mut [T]; 2])) {
        let (layout, layer) = (self.layout, &mut self.layers[layer]);
        let LayerCache::Q8(cache) = layer else { return };
        let mut key = vec![T::default(); layout.head_dim];
        let mut value = key.clone();
        for (s, cached) in batch.sequences.iter().zip(&batch.cached) {
            for token in 0..s.length {
                for head in 0..layout.kv_heads {
                    read(s.start + token, head, [&mut key, &mut value]);
                    let position = cached.length + token;
                    cache.store(layout, (&cached.blocks, position), head, [&key[..], &value[..]]);
                }
            }
        }
    }

    /// Attention of all tokens of some batches, whose keys and values are stored.
    pub(super) fn attend(&self, layer: usize, how: &CachedAttention<'_>, parts: Vec<AttentionPart<'_>>) {
        let (kv_heads, team) = (self.layout.kv_heads, how.cpu.team);
        let tokens: usize = parts.iter().map(|part| part.batch.tokens()).sum();
        let Some(first) = parts.first() else { return };
        let width = first.output.len() / first.batch.tokens();
        let group = width / kv_heads;
        let most = (PagedAttention::<T>::queries(how.cpu.isa) * self.layout.head_dim / group).max(8);
        let is_long = tokens >= 2 * team.count() * most;
        let (mut tasks, mut few) = (Vec::new(), Vec::new());
        for AttentionPart { batch, queries, stride, output } in parts {
            let mut rest = output;
            for (sequence, s) in batch.sequences.iter().enumerate() {
                for first in (0..s.length).step_by(most) {
                    let count = (s.length - first).min(most);
                    let own;
                    (own, rest) = rest.split_at_mut(count * width);
                    let queries = &queries[(s.start + first) * stride..];
                    let first = batch.cached_length(sequence) + first;
                    let blocks = &batch.cached[sequence].blocks[..];
                    let task = AttentionTask { queries, stride, blocks, first, count, kv_heads: 0..kv_heads };
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
        }
        if is_long {
            // Those with the most keys first: the others balance the threads.
            tasks.sort_by_key(|(task, _)| Reverse(task.first + task.count));
        }
        // The outputs of a head of several tokens are not contiguous: they are copied afterwards.
        let mut by_heads: Vec<Vec<f32>> = few.iter().map(|(_, own)| vec![0.0; own.len()]).collect();
        let mut all = Vec::with_capacity(tasks.len() + few.len() * kv_heads);
        for ((task, _), own) in few.iter().zip(&mut by_heads) {
            let heads = own.chunks_exact_mut(task.count * group).enumerate();
            all.extend(heads.map(|(head, own)| (task.of_head(head), own)));
        }
        all.append(&mut tasks);
        let attend = |part: Vec<(AttentionTask, &mut [f32])>| {
            let mut scratch = Scratch::default();
            for (task, output) in part {
                self.attend_task(layer, how, group, &task, &mut scratch, output);
            }
        };
        team.each(team.in_parts(all), |part| match Bf16::on_tiles(how.cpu.isa) {
            // The tiles of the thread are configured once.
            Some(unit) => unit.with_tiles(|_| attend(part)),
            None => attend(part),
        });
        for ((task, to), own) in few.into_iter().zip(&by_heads) {
            for (head, own) in own.chunks_exact(task.count * group).enumerate() {
                for (to, from) in to.chunks_exact_mut(width).zip(own.chunks_exact(group)) {
                    to[head * group..][..group].copy_from_slice(from);
                }
            }
        }
    }

    /// Attention of a task, of which a KV head has `group` values of queries.
    fn attend_task(
        &self,
        layer: usize,
        how: &CachedAttention<'_>,
        group: usize,
        task: &AttentionTask,
        scratch: &mut Scratch<T>,
        output: &mut [f32],
    ) {
        let AttentionTask { queries, stride, blocks, first, count, ref kv_heads } = *task;
        let seen = |position: usize| how.mask.keys(position, position + 1);
        let positions: Vec<_> = (first..first + count).map(seen).collect();
        let stride_out = output.len() / count;
        for (index, kv_head) in kv_heads.clone().enumerate() {
            let (scale, softcap) = (how.scale, how.softcap);
            let attention = match &self.layers[layer] {
                LayerCache::Plain { keys, values } => {
                    PagedAttention { keys, values, layout: self.layout, blocks, kv_head, scale, softcap }
                }
                LayerCache::Q8(cache) => {
                    let start = positions.iter().map(|seen| seen.start).min().unwrap_or(0) / BLOCK_SIZE;
                    let end = (first + count).div_ceil(BLOCK_SIZE);
                    let blocks = (&blocks[start..end], start);
                    scratch.widened.widen(cache, how.cpu.isa, self.layout, blocks, kv_head);
                    let WidenedHead { keys, values, table } = &scratch.widened;
                    let layout = BlockLayout { kv_heads: 1, ..self.layout };
                    PagedAttention { keys, values, layout, blocks: table, kv_head: 0, scale, softcap }
                }
            };
            let queries = PagedQueries {
                positions: &positions,
                width: group,
                strides: [stride, stride_out],
                values: &queries[kv_head * group..],
            };
            attention.attend(how.cpu.isa, queries, &mut scratch.attention, &mut output[index * group..]);
        }
    }
}

/// The tokens of a batch by cache block: the row of each in the batch, and its place in the block.
fn tokens_by_block(batch: &Batch) -> BTreeMap<usize, Vec<(usize, usize)>> {
    let mut blocks = BTreeMap::<usize, Vec<_>>::new();
    for (s, cached) in batch.sequences.iter().zip(&batch.cached) {
        for token in 0..s.length {
            let position = cached.length + token;
            let block = cached.blocks[position / BLOCK_SIZE] as usize;
            blocks.entry(block).or_default().push((s.start + token, position % BLOCK_SIZE));
        }
    }
    blocks
}

/// Returns blocks of `size` values, which are asked for in order.
fn in_order<'a, T>(values: &'a mut [T], size: usize) -> impl FnMut(usize) -> Option<&'a mut [T]> {
    let (mut blocks, mut next) = (values.chunks_exact_mut(size), 0);
    move |block| {
        let skipped = block - next;
        next = block + 1;
        blocks.nth(skipped)
    }
}

/// Attention of some tokens of a sequence.
#[derive(Clone)]
struct AttentionTask<'a> {
    /// Queries from the first token on. Those of a token are contiguous; tokens are `stride` apart.
    queries: &'a [f32],
    stride: usize,
    /// The blocks of the sequence.
    blocks: &'a [u32],
    /// The position of the first token.
    first: usize,
    count: usize,
    kv_heads: Range<usize>,
}

impl<'a> AttentionTask<'a> {
    /// The part of one KV head.
    fn of_head(&self, head: usize) -> AttentionTask<'a> {
        AttentionTask { kv_heads: head..head + 1, ..self.clone() }
    }
}
