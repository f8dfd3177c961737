//! Attention of the bf16 forward pass over a KV cache.

use sconce_core::batch::Batch;
use sconce_kernels::attention::AttentionMask;
use sconce_kernels::bf16::{Bf16, Panels, STEP, narrow_heads, widen_heads};
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
    to.resize(tokens * d.query_width(), 0.0);
    for (token, to) in to.chunks_exact_mut(d.query_width()).enumerate() {
        widen_heads(unit, qkv, token, d.head_dim, to);
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
    for (token, attended) in attended.chunks_exact(d.query_width()).enumerate() {
        narrow_heads(unit, attended, d.head_dim, context, token);
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
    // Queries and keys; values stay as they are.
    let mut row = vec![0.0; (d.heads + d.kv_heads) * d.head_dim];
    for (token, position) in batch.positions().enumerate() {
        widen_heads(unit, qkv, token, d.head_dim, &mut row);
        heads.qk_norm_rope(Isa::Avx512, &mut row, position, norms, rope_table);
        narrow_heads(unit, &row, d.head_dim, qkv, token);
    }
}
