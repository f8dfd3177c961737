//! The blocks of a paged KV cache, and attention over them as data.

use std::iter::StepBy;
use std::ops::Range;

use crate::bf16;

/// An element of a KV cache: f32, or bf16 as its bits.
pub trait CacheElement: Copy + Default + Send + Sync {
    /// The value.
    fn widen(self) -> f32;
    /// The nearest element.
    fn narrow(value: f32) -> Self;
    /// The elements as bits of bf16, if they are bf16.
    fn as_bf16(elements: &[Self]) -> Option<&[u16]>;
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

    fn as_bf16(_: &[f32]) -> Option<&[u16]> {
        None
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

    fn as_bf16(elements: &[u16]) -> Option<&[u16]> {
        Some(elements)
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
    pub(crate) fn head(self, block: u32, kv_head: usize) -> Range<usize> {
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

/// Queries of some tokens of a sequence that share a KV head.
#[derive(Clone, Copy, Debug)]
pub struct PagedQueries<'a> {
    /// The positions that each token attends to, not empty.
    pub positions: &'a [Range<usize>],
    /// Values of a token, `[group, head_dim]`.
    pub width: usize,
    /// Values from one token to the next, in the queries and in the output.
    pub strides: [usize; 2],
    /// The queries.
    pub values: &'a [f32],
}

/// The positions that some token attends to.
pub(crate) fn seen(positions: &[Range<usize>]) -> Range<usize> {
    let start = positions.iter().map(|range| range.start).min().unwrap_or(0);
    let end = positions.iter().map(|range| range.end).max().unwrap_or(0);
    start..end
}
