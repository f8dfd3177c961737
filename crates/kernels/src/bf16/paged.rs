//! Attention over a paged KV cache on tiles: 32 queries against 128 keys at a time, with a running maximum.
//!
//! Keys are grouped by their position in the sequence, and a row of a tile does not depend on the others: a query has the
//! same result in any batch, however its prompt was split into steps.

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_maskz_loadu_epi16, _mm512_cvtepu16_epi32,
    _mm512_fmadd_ps, _mm512_fmsub_ps, _mm512_mask_mov_ps, _mm512_maskz_mov_ps, _mm512_max_ps,
    _mm512_or_si512, _mm512_reduce_add_ps, _mm512_reduce_max_ps, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_slli_epi32, _mm512_storeu_si512,
};
use std::cell::RefCell;
use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::panels::STEP;
use super::tiles::{Bf16, Tiles};
use super::vectors::{add, load, power_of_two, round, store};
use crate::attention::squash;
use crate::buffer::Buffer;
use crate::kv_blocks::{BLOCK_SIZE, PagedAttention, PagedQueries, seen};

/// Keys of a pass.
const KEYS: usize = 128;
/// Values in a tile of keys or values.
const TILE: usize = 512;

/// Scratch memory of a thread. Its size depends on the head dimension and the number of queries in a call only.
#[derive(Default)]
struct Scratch {
    /// Queries in bf16, `[queries, wide]`.
    queries: Buffer<u16>,
    /// Tiles of the keys of a pass.
    keys: Buffer<u16>,
    /// Tiles of the values of a pass.
    values: Buffer<u16>,
    /// `[32, 128]`.
    scores: Buffer<f32>,
    /// `[32, 128]`.
    probabilities: Buffer<u16>,
    /// A product, `[32, 32]`.
    product: Buffer<f32>,
    /// Weighted sums of values, `[queries, wide]`.
    sums: Buffer<f32>,
    states: Vec<Softmax>,
}

/// The softmax of a query over the passes so far.
#[derive(Clone, Copy)]
struct Softmax {
    /// The greatest score.
    top: f32,
    /// The sum of probabilities, relative to the greatest score.
    total: f32,
    /// The factor of earlier sums in this pass.
    decay: f32,
}

/// Attention of queries of one sequence that share a KV head, on tiles.
struct Attend<'a> {
    attention: &'a PagedAttention<'a, u16>,
    queries: PagedQueries<'a>,
    /// Positions that some query attends to.
    seen: Range<usize>,
    /// Number of queries.
    count: usize,
    /// Number of panels of 32 values of a head.
    parts: usize,
}

impl PagedAttention<'_, u16> {
    /// As [`PagedAttention::attend`], on tiles, with queries and probabilities in bf16.
    pub(crate) fn attend_on_tiles(&self, unit: Bf16, queries: PagedQueries<'_>, output: &mut [f32]) {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        let head_dim = self.layout.head_dim;
        let count = queries.positions.len() * (queries.width / head_dim);
        let attend = Attend {
            attention: self,
            queries,
            seen: seen(queries.positions),
            count,
            parts: head_dim.div_ceil(STEP),
        };
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.grow(count.next_multiple_of(STEP), attend.parts);
            // SAFETY: a `Bf16` exists only where these instructions do, and the scratch was sized above.
            unit.with_tiles(|tiles| unsafe { attend.run(tiles, scratch, output) });
        });
    }
}

impl Scratch {
    fn grow(&mut self, rows: usize, parts: usize) {
        let wide = parts * STEP;
        self.queries.grow(rows * wide);
        self.keys.grow(KEYS * wide);
        self.values.grow(KEYS * wide);
        self.scores.grow(STEP * KEYS);
        self.probabilities.grow(STEP * KEYS);
        self.product.grow(STEP * STEP);
        self.sums.grow(rows * wide);
    }
}

impl Attend<'_> {
    /// # Safety
    /// The scratch holds the queries, padded to a multiple of 32, and the processor has the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn run(&self, tiles: &Tiles, scratch: &mut Scratch, output: &mut [f32]) {
        self.pack_queries(&mut scratch.queries);
        let wide = self.parts * STEP;
        scratch.sums[..self.count * wide].fill(0.0);
        scratch.states.clear();
        scratch.states.resize(self.count, Softmax { top: f32::NEG_INFINITY, total: 0.0, decay: 1.0 });
        for pass in self.seen.start / KEYS..self.seen.end.div_ceil(KEYS) {
            // Whole tiles of keys that any query attends to.
            let start = self.seen.start.max(pass * KEYS) / STEP * STEP;
            let end = self.seen.end.min((pass + 1) * KEYS).next_multiple_of(STEP);
            self.pack_keys(start..end, &mut scratch.keys);
            self.pack_values(start..end, &mut scratch.values);
            for first in (0..self.count).step_by(STEP) {
                // SAFETY: the caller guarantees the scratch.
                unsafe { self.add_pass(tiles, start..end, first, scratch) };
            }
        }
        self.finish(scratch, output);
    }

    /// Adds the keys of a pass to 32 queries from `first` on.
    ///
    /// # Safety
    /// As for `run`; the tiles of the keys are packed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn add_pass(&self, tiles: &Tiles, keys: Range<usize>, first: usize, scratch: &mut Scratch) {
        let (parts, wide, count) = (self.parts, self.parts * STEP, (self.count - first).min(STEP));
        let all = count > STEP / 2;
        let group = self.queries.width / self.attention.layout.head_dim;
        // Whole tiles of keys that any of these queries attends to.
        let own = seen(&self.queries.positions[first / group..=(first + count - 1) / group]);
        let own = own.start.clamp(keys.start, keys.end)..own.end.clamp(keys.start, keys.end);
        if own.is_empty() {
            return;
        }
        let own = (own.start - keys.start) / STEP * STEP..(own.end - keys.start).next_multiple_of(STEP);
        for key in own.clone().step_by(STEP) {
            tiles.zero();
            for part in 0..parts {
                // SAFETY: 32 queries can be read, and the keys are packed in tiles of 16 by 32.
                unsafe {
                    let top = scratch.queries.as_ptr().add(first * wide + part * STEP);
                    let left = scratch.keys.as_ptr().add((key / BLOCK_SIZE * parts + part) * TILE);
                    let right = left.add(parts * TILE);
                    if all {
                        tiles.multiply_2x2(top, top.add(STEP / 2 * wide), wide * 2, left, right);
                    } else {
                        tiles.multiply_1x2(top, wide * 2, left, right);
                    }
                }
            }
            // SAFETY: the scores are 32 rows of 128.
            unsafe { tiles.store(scratch.scores.as_mut_ptr().add(key), KEYS * 4, all) };
        }
        let (start, end) = (keys.start + own.start, keys.start + own.end);
        for row in 0..count {
            let seen = &self.queries.positions[(first + row) / group];
            let seen = seen.start.clamp(start, end) - start..seen.end.clamp(start, end) - start;
            let scores = &mut scratch.scores[row * KEYS..][own.clone()];
            let probabilities = &mut scratch.probabilities[row * KEYS..][own.clone()];
            let state = &mut scratch.states[first + row];
            if seen == (0..own.len()) {
                self.probabilities::<true>(state, scores, seen, probabilities);
            } else {
                self.probabilities::<false>(state, scores, seen, probabilities);
            }
        }
        for part in 0..parts {
            tiles.zero();
            for key in own.clone().step_by(STEP) {
                // SAFETY: the probabilities are 32 rows of 128, and the values are packed in tiles of 32 by 16.
                unsafe {
                    let top = scratch.probabilities.as_ptr().add(key);
                    let left = scratch.values.as_ptr().add((key / STEP * parts + part) * 2 * TILE);
                    let right = left.add(TILE);
                    if all {
                        tiles.multiply_2x2(top, top.add(STEP / 2 * KEYS), KEYS * 2, left, right);
                    } else {
                        tiles.multiply_1x2(top, KEYS * 2, left, right);
                    }
                }
            }
            // SAFETY: the product is 32 rows of 32.
            unsafe { tiles.store(scratch.product.as_mut_ptr(), STEP * 4, all) };
            let sums = scratch.sums[first * wide..].as_chunks_mut::<STEP>().0.iter_mut();
            let products = scratch.product.as_chunks::<STEP>().0.iter().zip(&scratch.states[first..]);
            for (sums, (product, state)) in sums.skip(part).step_by(parts).zip(products).take(count) {
                let (decay, [left, right], product) =
                    (_mm512_set1_ps(state.decay), load(sums), load(product));
                let sum =
                    [_mm512_fmadd_ps(left, decay, product[0]), _mm512_fmadd_ps(right, decay, product[1])];
                store(sum, sums);
            }
        }
    }

    /// Computes the probabilities of the `seen` scores of a query relative to the greatest score so far; those of
    /// other scores are 0. If there are no others, it is `ALL` of them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    fn probabilities<const ALL: bool>(
        &self,
        state: &mut Softmax,
        scores: &mut [f32],
        seen: Range<usize>,
        probabilities: &mut [u16],
    ) {
        if seen.is_empty() {
            state.decay = 1.0;
            probabilities.fill(0);
            return;
        }
        let mut scale = self.attention.scale;
        if let Some(cap) = self.attention.softcap {
            let scores = &mut scores[seen.clone()];
            for score in scores.iter_mut() {
                *score *= scale;
            }
            squash(scores, cap);
            scale = 1.0;
        }
        let scale = scale * LOG2_E;
        let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
        let scores = scores.as_chunks::<STEP>().0;
        let mut tops = [lowest; 2];
        for (chunk, own) in scores.iter().zip(masks::<ALL>(&seen)) {
            let chunk = load(chunk);
            for half in 0..2 {
                tops[half] = _mm512_max_ps(tops[half], _mm512_mask_mov_ps(lowest, own[half], chunk[half]));
            }
        }
        let top = state.top.max(_mm512_reduce_max_ps(_mm512_max_ps(tops[0], tops[1])));
        state.decay = if top > state.top { ((state.top - top) * scale).exp2() } else { 1.0 };
        state.top = top;
        let (factor, shift) = (_mm512_set1_ps(scale), _mm512_set1_ps(top * scale));
        let mut sums = [_mm512_setzero_ps(); 2];
        for ((chunk, own), to) in scores.iter().zip(masks::<ALL>(&seen)).zip(probabilities.as_chunks_mut().0)
        {
            let chunk = load(chunk);
            let mut powers = [_mm512_setzero_ps(); 2];
            for half in 0..2 {
                let power = power_of_two(_mm512_fmsub_ps(chunk[half], factor, shift));
                powers[half] = _mm512_maskz_mov_ps(own[half], power);
            }
            sums = add(sums, powers);
            round(powers, to);
        }
        let sum = _mm512_reduce_add_ps(sums[0]) + _mm512_reduce_add_ps(sums[1]);
        state.total = state.total.mul_add(state.decay, sum);
    }

    /// Rounds the queries to bf16, each padded with zeros. Rows of a tile after the last query keep what they had: their products
    /// are not read.
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn pack_queries(&self, to: &mut [u16]) {
        let (head_dim, parts) = (self.attention.layout.head_dim, self.parts);
        let group = self.queries.width / head_dim;
        for (row, to) in to.chunks_exact_mut(parts * STEP).take(self.count).enumerate() {
            let at = row / group * self.queries.strides[0] + row % group * head_dim;
            let query = &self.queries.values[at..][..head_dim];
            for (from, to) in query.chunks(STEP).zip(to.as_chunks_mut().0) {
                let mut padded = [0.0; STEP];
                padded[..from.len()].copy_from_slice(from);
                round(load(&padded), to);
            }
        }
    }

    /// Packs keys as tiles: 16 keys side by side, their values in pairs of rows.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn pack_keys(&self, keys: Range<usize>, to: &mut [u16]) {
        let PagedAttention { keys: cache, layout, blocks, kv_head, .. } = *self.attention;
        for (index, tiles) in keys.step_by(BLOCK_SIZE).zip(to.chunks_exact_mut(self.parts * TILE)) {
            // Scores of keys beyond the last one are not read.
            let Some(block) = blocks.get(index / BLOCK_SIZE) else { continue };
            let rows = cache[layout.head(*block, kv_head)].as_chunks::<BLOCK_SIZE>().0;
            let next = blocks
                .get(index / BLOCK_SIZE + 1)
                .map_or(&[][..], |block| &cache[layout.head(*block, kv_head)]);
            for (pair, to) in tiles.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
                prefetch(next, pair * STEP);
                let (even, odd) = (rows.get(2 * pair), rows.get(2 * pair + 1));
                interleave(widened(even), widened(odd), to);
            }
        }
    }

    /// Packs values as tiles: 16 columns side by side, keys in pairs of rows. Rows that no query attends to are zero, so
    /// that stale memory does not contribute.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn pack_values(&self, keys: Range<usize>, to: &mut [u16]) {
        for (pair, key) in keys.step_by(2).enumerate() {
            let (even, odd) = (self.value(key), self.value(key + 1));
            let next = self.value(key + BLOCK_SIZE);
            let tiles = to[pair / BLOCK_SIZE * 2 * self.parts * TILE..].as_chunks_mut::<TILE>().0;
            for (half, tile) in tiles.iter_mut().enumerate().take(2 * self.parts) {
                let to = &mut tile.as_chunks_mut::<STEP>().0[pair % BLOCK_SIZE];
                let (even, odd) = (even.get(half * 16..), odd.get(half * 16..));
                prefetch(next, half * STEP);
                interleave(widened_some(even), widened_some(odd), to);
            }
        }
    }

    /// The value of a key, empty if no query attends to it.
    #[inline(always)]
    fn value(&self, key: usize) -> &[u16] {
        let PagedAttention { values, layout, blocks, kv_head, .. } = *self.attention;
        if self.seen.contains(&key) { &values[layout.value(blocks, key, kv_head)] } else { &[] }
    }

    /// Writes the normalized sums.
    #[target_feature(enable = "avx512f")]
    fn finish(&self, scratch: &Scratch, output: &mut [f32]) {
        let head_dim = self.attention.layout.head_dim;
        let group = self.queries.width / head_dim;
        let rows = scratch.sums.chunks_exact(self.parts * STEP).zip(&scratch.states);
        for (row, (sums, state)) in rows.enumerate() {
            let at = row / group * self.queries.strides[1] + row % group * head_dim;
            let scale = 1.0 / state.total;
            output[at..][..head_dim].iter_mut().zip(sums).for_each(|(to, sum)| *to = sum * scale);
        }
    }
}

/// For each 32 scores, the lanes of both halves that are in `seen`: `ALL`, or some.
#[inline(always)]
fn masks<const ALL: bool>(seen: &Range<usize>) -> impl Iterator<Item = [u16; 2]> {
    let lanes = |start: usize, seen: &Range<usize>| {
        lowest_lanes(seen.end.saturating_sub(start)) & !lowest_lanes(seen.start.saturating_sub(start))
    };
    let seen = seen.clone();
    (0..).step_by(STEP).map(
        move |start| {
            if ALL { [u16::MAX; 2] } else { [lanes(start, &seen), lanes(start + 16, &seen)] }
        },
    )
}

/// Prefetches the cache line of a value. Values of two keys are adjacent.
#[inline(always)]
fn prefetch(values: &[u16], at: usize) {
    if !values.is_empty() {
        // SAFETY: prefetching reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(at).cast()) };
    }
}

/// 16 values as 32-bit values; zeros for none.
#[target_feature(enable = "avx512f")]
#[inline]
fn widened(values: Option<&[u16; 16]>) -> __m512i {
    let Some(values) = values else { return _mm512_setzero_si512() };
    // SAFETY: 16 short values are one half vector.
    _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(values.as_ptr().cast()) })
}

/// The first 16 values as 32-bit values, padded with zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn widened_some(values: Option<&[u16]>) -> __m512i {
    let Some(values) = values else { return _mm512_setzero_si512() };
    if let Some(values) = values.first_chunk() {
        return widened(Some(values));
    }
    let lanes = lowest_lanes(values.len());
    // SAFETY: the mask selects values of the slice.
    _mm512_cvtepu16_epi32(unsafe { _mm256_maskz_loadu_epi16(lanes, values.as_ptr().cast()) })
}

/// A mask of the first `count` lanes.
#[inline]
fn lowest_lanes(count: usize) -> u16 {
    u16::MAX.checked_shr(16 - count.min(16) as u32).unwrap_or(0)
}

/// Stores 16 values beside 16 others, pair by pair.
#[target_feature(enable = "avx512f")]
#[inline]
fn interleave(even: __m512i, odd: __m512i, to: &mut [u16; STEP]) {
    let pairs = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    // SAFETY: 32 short values are one vector.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
}
