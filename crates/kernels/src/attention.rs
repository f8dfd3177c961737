//! f32 attention over one sequence of a packed batch: four queries at a time against panels of keys and values.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::math::{exp, tanh};
use crate::rows::{copy, largest, sum};

/// Queries per block: each key and value is loaded once for all of them.
const QUERIES: usize = 4;
/// SIMD vectors of keys or values per panel.
const VECTORS: usize = 2;

/// The columns of one head's queries, keys and values in a row. Grouped-query heads share keys and values.
#[derive(Clone, Copy, Debug)]
pub struct QkvColumns {
    /// Values between the starts of two rows.
    pub stride: usize,
    /// Dimension of the head.
    pub head_dim: usize,
    /// First column of its queries, keys and values.
    pub offsets: [usize; 3],
}

impl QkvColumns {
    /// The queries (0), keys (1) or values (2) of one row.
    #[inline(always)]
    fn part<'a>(&self, rows: &'a [f32], row: usize, which: usize) -> &'a [f32] {
        &rows[row * self.stride + self.offsets[which]..][..self.head_dim]
    }
}

/// The keys that a query attends to: a window, and a limit on the key's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionMask {
    /// Keys before the query.
    pub before: usize,
    /// Keys after the query; 0 in causal attention.
    pub after: usize,
    /// Only the first `visible` keys are attended to. Every query needs one of them within its window.
    pub visible: usize,
}

impl AttentionMask {
    /// Attends to every key.
    pub const ALL: AttentionMask =
        AttentionMask { before: usize::MAX, after: usize::MAX, visible: usize::MAX };

    /// The keys of a sequence of `length` that `query` attends to.
    #[inline(always)]
    pub fn keys(self, query: usize, length: usize) -> Range<usize> {
        let end = query.saturating_add(self.after).saturating_add(1).min(length).min(self.visible);
        query.saturating_sub(self.before).min(end)..end
    }
}

/// One head's relative position bias. The biases of a query are a slice of it.
#[derive(Clone, Copy, Debug)]
pub struct RelativeBias<'a> {
    /// Biases for distances from `-(positions-1)` to `positions-1`.
    pub values: &'a [f32],
    /// Maximum sequence length.
    pub positions: usize,
}

impl<'a> RelativeBias<'a> {
    /// The biases of the keys 0, 1, 2, … for the query at `position`.
    #[inline(always)]
    pub fn row(self, position: usize) -> &'a [f32] {
        &self.values[self.positions - 1 - position..]
    }
}

/// One head's relative scores of disentangled attention: the scaled score of each query and of each key for every
/// bucket of distances.
#[derive(Clone, Copy, Debug)]
pub struct DisentangledScores<'a> {
    /// Scores of the queries, `[length, buckets]`.
    pub queries: &'a [f32],
    /// Scores of the keys, `[length, buckets]`.
    pub keys: &'a [f32],
    /// Number of buckets.
    pub buckets: usize,
    /// The bucket of each distance, query position minus key position, from `-(positions-1)` to `positions-1`.
    pub bucket_of: &'a [u32],
}

impl DisentangledScores<'_> {
    /// Adds the relative scores of `query` for the keys from `first` on.
    #[inline(always)]
    fn add(&self, query: usize, first: usize, scores: &mut [f32]) {
        let middle = self.bucket_of.len() / 2;
        let own = &self.queries[query * self.buckets..][..self.buckets];
        for (key, score) in (first..).zip(scores) {
            let bucket = self.bucket_of[middle + query - key] as usize;
            *score += own[bucket] + self.keys[key * self.buckets + bucket];
        }
    }
}

/// Bias of attention scores, added before softmax.
#[derive(Clone, Copy, Debug)]
pub enum ScoreBias<'a> {
    /// Nothing.
    None,
    /// Relative position bias.
    Relative(RelativeBias<'a>),
    /// Relative scores of disentangled attention.
    Disentangled(DisentangledScores<'a>),
}

/// Scratch memory, reused between calls.
#[derive(Default)]
pub struct AttentionScratch {
    queries: Buffer<f32>,
    keys: Buffer<f32>,
    values: Buffer<f32>,
    scores: Buffer<f32>,
    context: Buffer<f32>,
}

impl AttentionScratch {
    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        let AttentionScratch { queries, keys, values, scores, context } = self;
        [queries, keys, values, scores, context].map(Buffer::bytes).iter().sum()
    }
}

/// Attention of one head over one sequence: reads `rows`, writes `output`, whose rows are `output_stride` apart.
#[derive(Debug)]
pub struct AttentionHead<'a> {
    /// Rows of queries, keys and values.
    pub rows: &'a [f32],
    /// Sequence length.
    pub length: usize,
    /// The head's columns.
    pub at: QkvColumns,
    /// Bias of the QKV projection, if it is not applied yet.
    pub bias: Option<&'a [f32]>,
    /// Factor of attention scores.
    pub scale: f32,
    /// Scores are squashed into this range by tanh.
    pub softcap: Option<f32>,
    /// The attention mask.
    pub mask: AttentionMask,
    /// Bias of attention scores.
    pub score_bias: ScoreBias<'a>,
}

impl AttentionHead<'_> {
    /// Computes attention.
    pub fn attend(&self, isa: Isa, scratch: &mut AttentionScratch, output: &mut [f32], output_stride: usize) {
        isa.dispatch(Attend { head: self, scratch, output, output_stride });
    }
}

struct Attend<'a, 'b> {
    head: &'a AttentionHead<'b>,
    scratch: &'a mut AttentionScratch,
    output: &'a mut [f32],
    output_stride: usize,
}

impl WithSimd for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Attend { head, scratch, output, output_stride } = self;
        let AttentionHead { length, at, softcap, mask, score_bias, .. } = *head;
        let panel_width = VECTORS * S::F32_LANES;
        let keys = length.next_multiple_of(panel_width);
        let columns = at.head_dim.next_multiple_of(panel_width);
        pack(head, scratch, panel_width);
        scratch.scores.grow(QUERIES * keys);
        scratch.context.grow(QUERIES * columns);

        let (key_vectors, _) = S::as_simd_f32s(&scratch.keys[..keys * at.head_dim]);
        let (value_vectors, _) = S::as_simd_f32s(&scratch.values[..columns * length]);
        for first in (0..length).step_by(QUERIES) {
            let place = |r: usize| (first + r).min(length - 1);
            let seen = mask.keys(first, length).start..mask.keys(place(QUERIES - 1), length).end;
            let query = |r: usize| &scratch.queries[place(r) * at.head_dim..][..at.head_dim];
            let queries = [query(0), query(1), query(2), query(3)];
            let panels = key_vectors.chunks_exact(VECTORS * at.head_dim).enumerate();
            for (panel, keys_here) in
                panels.take(seen.end.div_ceil(panel_width)).skip(seen.start / panel_width)
            {
                store::<S>(
                    products(simd, queries, keys_here),
                    &mut scratch.scores,
                    keys,
                    panel * panel_width,
                );
            }
            for (r, scores) in scratch.scores.chunks_exact_mut(keys).take(QUERIES).enumerate() {
                let own = mask.keys(place(r), length);
                scores[seen.start..own.start].fill(0.0);
                scores[own.end..seen.end].fill(0.0);
                let scores = &mut scores[own.clone()];
                if let Some(cap) = softcap {
                    squash(scores, cap);
                }
                match score_bias {
                    ScoreBias::None => {}
                    ScoreBias::Relative(relative_bias) => {
                        for (score, bias) in scores.iter_mut().zip(&relative_bias.row(place(r))[own.start..])
                        {
                            *score += bias;
                        }
                    }
                    ScoreBias::Disentangled(disentangled) => disentangled.add(place(r), own.start, scores),
                }
                softmax(scores);
            }
            let row = |r: usize| &scratch.scores[r * keys..][seen.clone()];
            let rows = [row(0), row(1), row(2), row(3)];
            for (panel, values_here) in value_vectors.chunks_exact(VECTORS * length).enumerate() {
                let values_here = &values_here[VECTORS * seen.start..];
                store::<S>(
                    products(simd, rows, values_here),
                    &mut scratch.context,
                    columns,
                    panel * panel_width,
                );
            }
            for r in 0..QUERIES.min(length - first) {
                let to = &mut output[(first + r) * output_stride..][..at.head_dim];
                copy(&scratch.context[r * columns..][..at.head_dim], to);
            }
        }
    }
}

/// Packs scaled queries, and panels of keys and values; adds the bias.
#[inline(always)]
fn pack(head: &AttentionHead<'_>, scratch: &mut AttentionScratch, panel_width: usize) {
    let AttentionHead { rows, length, at, bias, scale, .. } = *head;
    let (queries, keys) = (length * at.head_dim, length.next_multiple_of(panel_width) * at.head_dim);
    let values = at.head_dim.next_multiple_of(panel_width) * length;
    scratch.queries.grow(queries);
    scratch.keys.grow(keys);
    scratch.values.grow(values);
    let bias = |which: usize, d: usize| bias.map_or(0.0, |bias| bias[at.offsets[which] + d]);
    for (row, query) in scratch.queries[..queries].chunks_exact_mut(at.head_dim).enumerate() {
        for (d, (to, from)) in query.iter_mut().zip(at.part(rows, row, 0)).enumerate() {
            *to = (from + bias(0, d)) * scale;
        }
    }
    for (panel, keys) in scratch.keys[..keys].chunks_exact_mut(panel_width * at.head_dim).enumerate() {
        for lane in 0..panel_width.min(length - panel * panel_width) {
            for (d, from) in at.part(rows, panel * panel_width + lane, 1).iter().enumerate() {
                keys[d * panel_width + lane] = from + bias(1, d);
            }
        }
    }
    for (panel, values) in scratch.values[..values].chunks_exact_mut(panel_width * length).enumerate() {
        let first = panel * panel_width;
        let count = panel_width.min(at.head_dim - first);
        for (row, to) in values.chunks_exact_mut(panel_width).enumerate() {
            let from = &at.part(rows, row, 2)[first..first + count];
            for (d, (to, from)) in to.iter_mut().zip(from).enumerate() {
                *to = from + bias(2, first + d);
            }
        }
    }
}

/// `left · panel` for four rows and two vectors of columns.
#[inline(always)]
fn products<S: Simd>(simd: S, left: [&[f32]; QUERIES], panel: &[S::f32s]) -> [[S::f32s; VECTORS]; QUERIES] {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; QUERIES];
    let (panel, _) = panel.as_chunks::<VECTORS>();
    let [row0, row1, row2, row3] = left;
    for ((((right, x0), x1), x2), x3) in panel.iter().zip(row0).zip(row1).zip(row2).zip(row3) {
        for (sums, x) in sums.iter_mut().zip([x0, x1, x2, x3]) {
            let x = simd.splat_f32s(*x);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = simd.mul_add_e_f32s(x, *right, *sum);
            }
        }
    }
    sums
}

#[inline(always)]
fn store<S: Simd>(products: [[S::f32s; VECTORS]; QUERIES], to: &mut [f32], stride: usize, column: usize) {
    for (products, row) in products.iter().zip(to.chunks_exact_mut(stride)) {
        let (row, _) = S::as_mut_simd_f32s(&mut row[column..column + VECTORS * S::F32_LANES]);
        row.copy_from_slice(products);
    }
}

/// Squashes scores into ±`cap` by tanh.
#[inline(always)]
pub(crate) fn squash(scores: &mut [f32], cap: f32) {
    for score in scores {
        *score = cap * tanh(*score / cap);
    }
}

/// Softmax of a row of scores.
#[inline(always)]
pub(crate) fn softmax(scores: &mut [f32]) {
    let top = largest(scores);
    for score in scores.iter_mut() {
        *score = exp(*score - top);
    }
    let scale = 1.0 / sum(scores, |x| x);
    for score in scores.iter_mut() {
        *score *= scale;
    }
}
