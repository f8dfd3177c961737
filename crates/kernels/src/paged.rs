//! Attention over a paged KV cache. Each query is computed in the order of the keys, and queries beside it do not change it:
//! results do not depend on the other sequences of a batch, nor on how a prompt was split into steps.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::attention::{softmax, squash};
use crate::bf16::Bf16;
use crate::isa::Isa;
use crate::rows::copy;

use crate::kv_blocks::seen;
pub use crate::kv_blocks::{BLOCK_SIZE, BlockLayout, CacheElement, PagedAttention, PagedQueries};
pub use crate::kv_q8::Q8Cache;

/// Scratch memory, reused between calls.
#[derive(Default)]
pub struct PagedScratch {
    scores: Vec<f32>,
    /// Values of some queries, one after the other for each dimension.
    queries: Vec<f32>,
    /// Keys or values of a block, in f32.
    block: Vec<f32>,
    /// Rows of output, padded to whole vectors.
    sums: Vec<f32>,
}

impl<T: CacheElement> PagedAttention<'_, T> {
    /// Number of queries that should attend together with `isa`: they read the same keys and values.
    pub fn queries(isa: Isa) -> usize {
        if T::as_bf16(&[]).is_some() && Bf16::on_tiles(isa).is_some() { 64 } else { 8 }
    }

    /// Computes attention of some queries.
    pub fn attend(
        &self,
        isa: Isa,
        queries: PagedQueries<'_>,
        scratch: &mut PagedScratch,
        output: &mut [f32],
    ) {
        if let Some(unit) = Bf16::on_tiles(isa)
            && let (Some(keys), Some(values)) = (T::as_bf16(self.keys), T::as_bf16(self.values))
        {
            let PagedAttention { layout, blocks, kv_head, scale, softcap, .. } = *self;
            let attention = PagedAttention { keys, values, layout, blocks, kv_head, scale, softcap };
            return attention.attend_on_tiles(unit, queries, output);
        }
        let seen = seen(queries.positions);
        let first = seen.start / BLOCK_SIZE;
        let blocks = &self.blocks[first..seen.end.div_ceil(BLOCK_SIZE)];
        isa.dispatch(Attend {
            attention: PagedAttention { blocks, ..*self },
            skipped: first * BLOCK_SIZE,
            seen,
            group: queries.width / self.layout.head_dim,
            queries,
            scratch,
            output,
        });
    }
}

struct Attend<'a, 'b, T> {
    /// With the blocks of all positions.
    attention: PagedAttention<'a, T>,
    /// Position of the first token of the blocks.
    skipped: usize,
    /// Positions that some token attends to.
    seen: Range<usize>,
    /// Queries of a token.
    group: usize,
    queries: PagedQueries<'a>,
    scratch: &'b mut PagedScratch,
    output: &'b mut [f32],
}

impl<T: CacheElement> WithSimd for Attend<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let length = self.attention.blocks.len() * BLOCK_SIZE;
        let count = self.queries.positions.len() * self.group;
        self.pack_queries(count);
        self.scratch.scores.resize(count * length, 0.0);
        for index in 0..self.attention.blocks.len() {
            self.scores(simd, index, count);
        }
        for (row, scores) in self.scratch.scores.chunks_exact_mut(length).enumerate() {
            let seen = &self.queries.positions[row / self.group];
            let (before, rest) = scores.split_at_mut(seen.start - self.skipped);
            let (own, after) = rest.split_at_mut(seen.len());
            before.fill(0.0);
            after.fill(0.0);
            if let Some(cap) = self.attention.softcap {
                squash(own, cap);
            }
            softmax(own);
        }
        let head_dim = self.attention.layout.head_dim;
        let padded = head_dim.next_multiple_of(S::F32_LANES);
        self.scratch.sums.clear();
        self.scratch.sums.resize(count * padded, 0.0);
        for index in 0..self.attention.blocks.len() {
            self.add_values(simd, index, count, padded);
        }
        for (row, sums) in self.scratch.sums.chunks_exact(padded).enumerate() {
            let at = row / self.group * self.queries.strides[1] + row % self.group * head_dim;
            copy(&sums[..head_dim], &mut self.output[at..][..head_dim]);
        }
    }
}

impl<T: CacheElement> Attend<'_, '_, T> {
    /// Interleaves the queries of each pass.
    #[inline(always)]
    fn pack_queries(&mut self, count: usize) {
        let head_dim = self.attention.layout.head_dim;
        self.scratch.queries.resize(count * head_dim, 0.0);
        for (first, rows) in passes(count, 8) {
            for row in first..first + rows {
                let at = row / self.group * self.queries.strides[0] + row % self.group * head_dim;
                let to = self.scratch.queries[first * head_dim..].iter_mut().skip(row - first).step_by(rows);
                to.zip(&self.queries.values[at..][..head_dim]).for_each(|(to, x)| *to = *x);
            }
        }
    }

    /// The scores of all queries with the keys of a block.
    #[inline(always)]
    fn scores<S: Simd>(&mut self, simd: S, index: usize, count: usize) {
        let PagedAttention { keys, layout, blocks, kv_head, .. } = self.attention;
        widen(&keys[layout.head(blocks[index], kv_head)], &mut self.scratch.block);
        for (first, rows) in passes(count, 8) {
            match rows {
                8 => self.some_scores::<S, 8>(simd, index, first),
                4 => self.some_scores::<S, 4>(simd, index, first),
                2 => self.some_scores::<S, 2>(simd, index, first),
                _ => self.some_scores::<S, 1>(simd, index, first),
            }
        }
    }

    /// The scores of `R` queries from `first` on.
    #[inline(always)]
    fn some_scores<S: Simd, const R: usize>(&mut self, simd: S, index: usize, first: usize) {
        let (head_dim, length) = (self.attention.layout.head_dim, self.attention.blocks.len() * BLOCK_SIZE);
        let PagedScratch { scores, queries, block, .. } = &mut *self.scratch;
        let queries = queries[first * head_dim..][..R * head_dim].as_chunks::<R>().0;
        let (keys, _) = S::as_simd_f32s(block);
        let vectors = BLOCK_SIZE / S::F32_LANES;
        let scale = simd.splat_f32s(self.attention.scale);
        for vector in 0..vectors {
            let mut sums = [simd.splat_f32s(0.0); R];
            for (keys, query) in keys.chunks_exact(vectors).zip(queries) {
                let key = keys[vector];
                for (sum, x) in sums.iter_mut().zip(query) {
                    *sum = simd.mul_add_e_f32s(simd.splat_f32s(*x), key, *sum);
                }
            }
            for (row, sum) in sums.into_iter().enumerate() {
                let at = (first + row) * length + index * BLOCK_SIZE;
                let to = S::as_mut_simd_f32s(&mut scores[at..][..BLOCK_SIZE]).0;
                to[vector] = simd.mul_f32s(sum, scale);
            }
        }
    }

    /// Adds the weighted values of a block to all outputs.
    #[inline(always)]
    fn add_values<S: Simd>(&mut self, simd: S, index: usize, count: usize, padded: usize) {
        let PagedAttention { values, layout, blocks, kv_head, .. } = self.attention;
        let values = &values[layout.head(blocks[index], kv_head)];
        self.scratch.block.resize(BLOCK_SIZE * padded, 0.0);
        let rows = self.scratch.block.chunks_exact_mut(padded);
        for (to, from) in rows.zip(values.chunks_exact(layout.head_dim)) {
            to[..layout.head_dim].iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
            to[layout.head_dim..].fill(0.0);
        }
        for (first, rows) in passes(count, 4) {
            match rows {
                4 => self.add_some_values::<S, 4>(simd, index, first, padded),
                2 => self.add_some_values::<S, 2>(simd, index, first, padded),
                _ => self.add_some_values::<S, 1>(simd, index, first, padded),
            }
        }
    }

    /// Adds the weighted values of a block to `R` outputs from `first` on.
    #[inline(always)]
    fn add_some_values<S: Simd, const R: usize>(
        &mut self,
        simd: S,
        index: usize,
        first: usize,
        padded: usize,
    ) {
        let length = self.attention.blocks.len() * BLOCK_SIZE;
        let start = index * BLOCK_SIZE;
        let from = (self.seen.start - self.skipped).saturating_sub(start);
        let to = (self.seen.end - self.skipped - start).min(BLOCK_SIZE);
        let PagedScratch { scores, block, sums, .. } = &mut *self.scratch;
        let mut weights = [[0.0; R]; BLOCK_SIZE];
        for (row, scores) in scores[first * length..].chunks_exact(length).take(R).enumerate() {
            let scores = &scores[start..][..BLOCK_SIZE];
            weights.iter_mut().zip(scores).for_each(|(weights, score)| weights[row] = *score);
        }
        let vectors = padded / S::F32_LANES;
        let values = &S::as_simd_f32s(block).0[from * vectors..to * vectors];
        let sums = S::as_mut_simd_f32s(&mut sums[first * padded..][..R * padded]).0;
        for vector in 0..vectors {
            let mut own = [simd.splat_f32s(0.0); R];
            own.iter_mut().enumerate().for_each(|(row, own)| *own = sums[row * vectors + vector]);
            for (values, weights) in values.chunks_exact(vectors).zip(&weights[from..to]) {
                let value = values[vector];
                for (own, weight) in own.iter_mut().zip(weights) {
                    *own = simd.mul_add_e_f32s(simd.splat_f32s(*weight), value, *own);
                }
            }
            own.iter().enumerate().for_each(|(row, own)| sums[row * vectors + vector] = *own);
        }
    }
}

/// Splits `count` rows into passes of `most` rows, and powers of two below.
#[inline(always)]
fn passes(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let rows = if count - first >= most { most } else { 1 << (count - first).checked_ilog2()? };
        first += rows;
        Some((first - rows, rows))
    })
}

/// Converts to f32.
#[inline(always)]
fn widen<T: CacheElement>(from: &[T], to: &mut Vec<f32>) {
    to.resize(from.len(), 0.0);
    to.iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
}

#[cfg(test)]
mod tests;
