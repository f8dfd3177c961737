//! Attention of the bf16 forward pass over a KV cache.

use sconce_core::batch::Batch;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::bf16::{Bf16, Panels, STEP, narrow_row, widen_row};
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::Norm;
use sconce_kernels::team::Team;

use super::kv_cache::{AttentionPart, CachedAttention, KvCache};
use super::matrix::Cpu;
use super::scratch_bf16::PartScratch;
use crate::description::Description;
use crate::head_layout::HeadLayout;

/// Stores the keys and values of `batch` in the cache.
pub(super) fn store(
    d: &Description,
    team: &Team,
    cache: &mut KvCache<u16>,
    layer: usize,
    batch: &Batch,
    qkv: &Panels<u16>,
) {
    let panels = d.head_dim.div_ceil(STEP);
    cache.store(layer, team, batch, |row, head, [key, value]| {
        qkv.get_from((d.heads + head) * panels, row, key);
        qkv.get_from((d.heads + d.kv_heads + head) * panels, row, value);
    });
}

/// The queries of `tokens` tokens in f32, `[tokens, heads · head_dim]`.
pub(super) fn queries(unit: Bf16, d: &Description, tokens: usize, qkv: &Panels<u16>, to: &mut Vec<f32>) {
    let (head, wide) = (d.head_dim, d.head_dim.next_multiple_of(STEP));
    let mut row = vec![0; d.heads * wide];
    to.resize(tokens * d.query_width(), 0.0);
    for (token, own) in to.chunks_exact_mut(d.query_width()).enumerate() {
        qkv.get(token, &mut row);
        for (from, to) in row.chunks_exact(wide).zip(own.chunks_exact_mut(head)) {
            widen_row(unit, &from[..head], to);
        }
    }
}

/// Attention of parts of a batch, whose keys and values are in the cache.
pub(super) fn attend(
    (unit, team): (Bf16, &Team),
    d: &Description,
    (cache, layer): (&KvCache<u16>, usize),
    parts: &[Batch],
    mask: AttentionMask,
    scratch: &mut [PartScratch],
) {
    let parts = parts.iter().zip(scratch).map(|(batch, PartScratch { queries, attended, .. })| {
        attended.resize(queries.len(), 0.0);
        AttentionPart { batch, queries, stride: d.query_width(), output: attended }
    });
    let (scale, softcap) = (d.scale as f32, d.softcap());
    let how = CachedAttention { mask, scale, softcap, cpu: Cpu::new(unit.isa(), team) };
    cache.attend(layer, &how, parts.collect());
}

/// Rounds what attention computed, `[tokens, heads · head_dim]`.
pub(super) fn round(unit: Bf16, d: &Description, attended: &[f32], context: &mut Panels<u16>) {
    let (head, wide) = (d.head_dim, d.head_dim.next_multiple_of(STEP));
    let mut row = vec![0; d.heads * wide];
    for (token, output) in attended.chunks_exact(d.query_width()).enumerate() {
        for (from, to) in output.chunks_exact(head).zip(row.chunks_exact_mut(wide)) {
            narrow_row(unit, from, &mut to[..head]);
        }
        context.set(token, &row);
    }
}

/// QK norms and rotary embedding, in f32.
pub(super) fn qk_norm_rope(
    unit: Bf16,
    d: &Description,
    norms: Option<&[Norm; 2]>,
    rope_table: Option<&RopeTable>,
    batch: &Batch,
    qkv: &mut Panels<u16>,
) {
    let heads = HeadLayout::of(d);
    let (head, wide) = (d.head_dim, d.head_dim.next_multiple_of(STEP));
    // Queries and keys; values stay as they are.
    let count = d.heads + d.kv_heads;
    let (mut short, mut row) = (vec![0; count * wide], vec![0.0; count * head]);
    for (token, position) in batch.positions().enumerate() {
        qkv.get(token, &mut short);
        for (from, to) in short.chunks_exact(wide).zip(row.chunks_exact_mut(head)) {
            widen_row(unit, &from[..head], to);
        }
        heads.qk_norm_rope(Isa::Avx512, &mut row, position, norms, rope_table);
        for (from, to) in row.chunks_exact(head).zip(short.chunks_exact_mut(wide)) {
            narrow_row(unit, from, &mut to[..head]);
        }
        qkv.put(token, &short);
    }
}
