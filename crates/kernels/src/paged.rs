//! Attention over a paged KV cache. Each query is computed on its own, in the order of the keys: results do not depend on
//! the other sequences of a batch, nor on how a prompt was split into steps.

use std::ops::Range;

use crate::attention::{softmax, squash};
use crate::bf16;
use crate::isa::{Isa, Vectorized};
use crate::rows::LANES;

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

/// Layout of a cache block of one layer: `[kv_heads, block_size, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Tokens per block.
    pub block_size: usize,
    /// Number of KV heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
}

impl BlockLayout {
    /// Values per block.
    pub fn values(self) -> usize {
        self.kv_heads * self.block_size * self.head_dim
    }

    /// The tokens of one KV head in `block`.
    #[inline(always)]
    fn head(self, block: u32, kv_head: usize) -> Range<usize> {
        let head = self.block_size * self.head_dim;
        let start = block as usize * self.values() + kv_head * head;
        start..start + head
    }

    /// The place of one KV head of the token at `position` of a sequence with these blocks.
    pub fn token(self, blocks: &[u32], position: usize, kv_head: usize) -> Range<usize> {
        let head = self.head(blocks[position / self.block_size], kv_head);
        let start = head.start + position % self.block_size * self.head_dim;
        start..start + self.head_dim
    }
}

/// Attention of the queries of one token that share a KV head.
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
    /// Positions that the queries attend to; at least one.
    pub positions: (usize, usize),
    /// Factor of attention scores.
    pub scale: f32,
    /// Scores are squashed into this range by tanh.
    pub softcap: Option<f32>,
}

impl<T: CacheElement> PagedAttention<'_, T> {
    /// Computes attention of `queries`, `[group, head_dim]`, into `output` of the same shape.
    pub fn attend(&self, isa: Isa, queries: &[f32], scores: &mut Vec<f32>, output: &mut [f32]) {
        isa.run(Attend { attention: self, queries, scores, output });
    }

    /// Each block with the part of it that is attended to, in tokens.
    #[inline(always)]
    fn parts(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        let (size, (start, end)) = (self.layout.block_size, self.positions);
        let blocks = self.blocks.iter().enumerate().take(end.div_ceil(size)).skip(start / size);
        blocks.map(move |(index, &block)| {
            let first = index * size;
            (block, start.saturating_sub(first)..(end - first).min(size))
        })
    }
}

struct Attend<'a, 'b, T> {
    attention: &'a PagedAttention<'b, T>,
    queries: &'a [f32],
    scores: &'a mut Vec<f32>,
    output: &'a mut [f32],
}

impl<T: CacheElement> Vectorized for Attend<'_, '_, T> {
    #[inline(always)]
    fn run(self) {
        let Attend { attention, queries, scores, output } = self;
        let PagedAttention { layout, kv_head, positions, .. } = *attention;
        let (head_dim, count) = (layout.head_dim, positions.1 - positions.0);
        let group = queries.len() / head_dim;
        scores.clear();
        scores.resize(group * count, 0.0);
        let mut at = 0;
        for (block, part) in attention.parts() {
            let keys = &attention.keys[layout.head(block, kv_head)];
            for key in keys[part.start * head_dim..part.end * head_dim].chunks_exact(head_dim) {
                for (query, scores) in queries.chunks_exact(head_dim).zip(scores.chunks_exact_mut(count)) {
                    scores[at] = dot(query, key) * attention.scale;
                }
                at += 1;
            }
        }
        for scores in scores.chunks_exact_mut(count) {
            if let Some(cap) = attention.softcap {
                squash(scores, cap);
            }
            softmax(scores);
        }
        output.fill(0.0);
        let mut at = 0;
        for (block, part) in attention.parts() {
            let values = &attention.values[layout.head(block, kv_head)];
            for value in values[part.start * head_dim..part.end * head_dim].chunks_exact(head_dim) {
                for (output, scores) in output.chunks_exact_mut(head_dim).zip(scores.chunks_exact(count)) {
                    let weight = scores[at];
                    output.iter_mut().zip(value).for_each(|(to, x)| *to += weight * x.widen());
                }
                at += 1;
            }
        }
    }
}

/// A dot product with [`LANES`] partial sums.
#[inline(always)]
fn dot<T: CacheElement>(query: &[f32], key: &[T]) -> f32 {
    let (query_lanes, query_rest) = query.as_chunks::<LANES>();
    let (key_lanes, key_rest) = key.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (query, key) in query_lanes.iter().zip(key_lanes) {
        for ((sum, x), y) in sums.iter_mut().zip(query).zip(key) {
            *sum += x * y.widen();
        }
    }
    let rest: f32 = query_rest.iter().zip(key_rest).map(|(x, y)| x * y.widen()).sum();
    sums.iter().sum::<f32>() + rest
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
    fn plain(queries: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f64, cap: Option<f64>) -> Vec<f64> {
        let head_dim = keys[0].len();
        let mut output = Vec::new();
        for query in queries.chunks(head_dim) {
            let score = |key: &&[f32]| {
                let products = query.iter().zip(*key).map(|(x, y)| f64::from(*x) * f64::from(*y));
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
        for (head_dim, group, block_size) in [(64, 3, 16), (20, 1, 4), (8, 8, 1)] {
            let layout = BlockLayout { block_size, kv_heads: 2, head_dim };
            let (keys, cached) = (values(7 * layout.values(), 1), values(7 * layout.values(), 2));
            let queries = values(group * head_dim, 3);
            for positions in [(0, 1), (0, 2 * block_size), (1, 3 * block_size), (0, 4 * block_size)] {
                let positions = (positions.0.min(positions.1 - 1), positions.1);
                for (softcap, kv_head) in [(None, 0), (Some(0.5), 1)] {
                    let place = |position| layout.token(&blocks, position, kv_head);
                    let own = |all: &'_ [f32]| -> Vec<Vec<f32>> {
                        (positions.0..positions.1).map(|position| all[place(position)].to_vec()).collect()
                    };
                    let (own_keys, own_values) = (own(&keys), own(&cached));
                    let slices = |own: &'_ [Vec<f32>]| own.to_vec();
                    let (own_keys, own_values) = (slices(&own_keys), slices(&own_values));
                    let wanted = plain(
                        &queries,
                        &own_keys.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                        &own_values.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                        0.3,
                        softcap.map(f64::from),
                    );
                    for isa in Isa::available() {
                        let attention = PagedAttention {
                            keys: &keys[..],
                            values: &cached[..],
                            layout,
                            blocks: &blocks,
                            kv_head,
                            positions,
                            scale: 0.3,
                            softcap,
                        };
                        let mut output = vec![f32::NAN; queries.len()];
                        attention.attend(isa, &queries, &mut Vec::new(), &mut output);
                        for (got, wanted) in output.iter().zip(&wanted) {
                            assert!((f64::from(*got) - wanted).abs() < 1e-5, "{isa} {positions:?}");
                        }
                    }
                }
            }
        }
    }
}
