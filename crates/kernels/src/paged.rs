//! Attention over a paged KV cache. Each query is computed in the order of the keys, and queries beside it do not change it:
//! results do not depend on the other sequences of a batch, nor on how a prompt was split into steps.

use std::iter::StepBy;
use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::attention::{softmax, squash};
use crate::bf16;
use crate::isa::Isa;
use crate::rows::copy;

/// An element of a KV cache: f32, or bf16 as its bits.
pub trait CacheElement: Copy + Default + Send + Sync {
    /// The value.
    fn widen(self) -> f32;
    /// The nearest element.
    fn narrow(value: f32) -> Self;
}

impl CacheElement for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> f32 {
        value
    }
}

impl CacheElement for u16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> u16 {
        bf16::narrow(value)
    }
}

/// Tokens per cache block.
pub const BLOCK_SIZE: usize = 16;

/// Layout of a cache block of one layer: keys as `[kv_heads, head_dim, 16]`, values as `[kv_heads, 16, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
}

impl BlockLayout {
    /// Values per block.
    pub fn values(self) -> usize {
        self.kv_heads * BLOCK_SIZE * self.head_dim
    }

    /// The tokens of one KV head in `block`.
    #[inline(always)]
    fn head(self, block: u32, kv_head: usize) -> Range<usize> {
        let head = BLOCK_SIZE * self.head_dim;
        let start = block as usize * self.values() + kv_head * head;
        start..start + head
    }

    /// The places of the key of one KV head of the token at `position` of a sequence with these blocks.
    pub fn key(self, blocks: &[u32], position: usize, kv_head: usize) -> StepBy<Range<usize>> {
        let head = self.head(blocks[position / BLOCK_SIZE], kv_head);
        (head.start + position % BLOCK_SIZE..head.end).step_by(BLOCK_SIZE)
    }

    /// The place of the value of one KV head of the token at `position`.
    pub fn value(self, blocks: &[u32], position: usize, kv_head: usize) -> Range<usize> {
        let head = self.head(blocks[position / BLOCK_SIZE], kv_head);
        let start = head.start + position % BLOCK_SIZE * self.head_dim;
        start..start + self.head_dim
    }
}

/// Attention of queries of one sequence that share a KV head.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttention<'a, T> {
    /// Cached keys of one layer.
    pub keys: &'a [T],
    /// Cached values of one layer.
    pub values: &'a [T],
    /// Layout of their blocks.
    pub layout: BlockLayout,
    /// Block table of the sequence.
    pub blocks: &'a [u32],
    /// The KV head.
    pub kv_head: usize,
    /// Factor of attention scores.
    pub scale: f32,
    /// Scores are squashed into this range by tanh.
    pub softcap: Option<f32>,
}

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
    /// Computes attention of some tokens. A token attends to its range of positions, which is not empty. It has `width`
    /// values of queries, `[group, head_dim]`, and as many of output; tokens are `strides` apart in queries and in output.
    #[expect(clippy::too_many_arguments, reason = "two matrices with their strides")]
    pub fn attend(
        &self,
        isa: Isa,
        positions: &[Range<usize>],
        width: usize,
        strides: [usize; 2],
        queries: &[f32],
        scratch: &mut PagedScratch,
        output: &mut [f32],
    ) {
        let start = positions.iter().map(|range| range.start).min().unwrap_or(0);
        let end = positions.iter().map(|range| range.end).max().unwrap_or(0);
        let first = start / BLOCK_SIZE;
        let blocks = &self.blocks[first..end.div_ceil(BLOCK_SIZE)];
        let group = width / self.layout.head_dim;
        isa.dispatch(Attend {
            attention: PagedAttention { blocks, ..*self },
            skipped: first * BLOCK_SIZE,
            seen: start..end,
            positions,
            group,
            strides,
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
    positions: &'a [Range<usize>],
    /// Queries of a token.
    group: usize,
    strides: [usize; 2],
    queries: &'a [f32],
    scratch: &'b mut PagedScratch,
    output: &'b mut [f32],
}

impl<T: CacheElement> WithSimd for Attend<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let length = self.attention.blocks.len() * BLOCK_SIZE;
        let count = self.positions.len() * self.group;
        self.pack_queries(count);
        self.scratch.scores.resize(count * length, 0.0);
        for index in 0..self.attention.blocks.len() {
            self.scores(simd, index, count);
        }
        for (row, scores) in self.scratch.scores.chunks_exact_mut(length).enumerate() {
            let seen = &self.positions[row / self.group];
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
            let at = row / self.group * self.strides[1] + row % self.group * head_dim;
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
                let at = row / self.group * self.strides[0] + row % self.group * head_dim;
                let to = self.scratch.queries[first * head_dim..].iter_mut().skip(row - first).step_by(rows);
                to.zip(&self.queries[at..][..head_dim]).for_each(|(to, x)| *to = *x);
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
mod tests {
    use super::*;

    /// Values between -1 and 1.
    fn values(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// Attention in f64 over keys and values of the attended positions.
    fn plain(
        queries: &[f32],
        keys: &[Vec<f32>],
        values: &[Vec<f32>],
        scale: f64,
        cap: Option<f64>,
    ) -> Vec<f64> {
        let head_dim = keys[0].len();
        let mut output = Vec::new();
        for query in queries.chunks(head_dim) {
            let score = |key: &Vec<f32>| {
                let products = query.iter().zip(key).map(|(x, y)| f64::from(*x) * f64::from(*y));
                let score = products.sum::<f64>() * scale;
                cap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            let weights: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
            let total: f64 = weights.iter().sum();
            output.extend((0..head_dim).map(|d| {
                let weighted = weights.iter().zip(values).map(|(weight, value)| weight * f64::from(value[d]));
                weighted.sum::<f64>() / total
            }));
        }
        output
    }

    #[test]
    fn every_instruction_set_attends_to_the_positions_in_scattered_blocks() {
        let blocks = [5, 0, 3, 6];
        for (head_dim, group, tokens) in [(64, 3, 1), (20, 1, 5), (8, 8, 2), (80, 2, 11), (128, 1, 3)] {
            let layout = BlockLayout { kv_heads: 2, head_dim };
            let (keys, cached) = (values(7 * layout.values(), 1), values(7 * layout.values(), 2));
            // Tokens are apart in queries and output.
            let (width, strides) = (group * head_dim, [group * head_dim + 5, group * head_dim + 3]);
            let queries = values(tokens * strides[0], 3);
            for (last, window) in [(tokens - 1, 64), (31, 64), (47, 18), (62, 64), (40, 1)] {
                let range = |position: usize| (position + 1).saturating_sub(window)..position + 1;
                let positions: Vec<_> = (last + 1 - tokens..=last).map(range).collect();
                for (softcap, kv_head) in [(None, 0), (Some(0.5), 1)] {
                    let attention = PagedAttention {
                        keys: &keys[..],
                        values: &cached[..],
                        layout,
                        blocks: &blocks,
                        kv_head,
                        scale: 0.3,
                        softcap,
                    };
                    for isa in Isa::available() {
                        let mut scratch = PagedScratch::default();
                        let mut output = vec![f32::NAN; tokens * strides[1]];
                        attention.attend(
                            isa,
                            &positions,
                            width,
                            strides,
                            &queries,
                            &mut scratch,
                            &mut output,
                        );
                        for (token, range) in positions.iter().enumerate() {
                            let own = &queries[token * strides[0]..][..width];
                            let got = &output[token * strides[1]..][..width];
                            let key =
                                |at: usize| layout.key(&blocks, at, kv_head).map(|at| keys[at]).collect();
                            let value = |at: usize| cached[layout.value(&blocks, at, kv_head)].to_vec();
                            let own_keys: Vec<Vec<f32>> = range.clone().map(key).collect();
                            let own_values: Vec<Vec<f32>> = range.clone().map(value).collect();
                            let wanted = plain(own, &own_keys, &own_values, 0.3, softcap.map(f64::from));
                            for (got, wanted) in got.iter().zip(&wanted) {
                                assert!(
                                    (f64::from(*got) - wanted).abs() < 1e-5,
                                    "{isa} {head_dim} {range:?}"
                                );
                            }
                            // The same alone, bit for bit.
                            let mut alone = vec![f32::NAN; width];
                            let range = std::slice::from_ref(range);
                            attention.attend(isa, range, width, [width; 2], own, &mut scratch, &mut alone);
                            assert_eq!(got, alone, "{isa} {head_dim} {range:?}");
                        }
                    }
                }
            }
        }
    }
}
