//! Attention on the CPU over packed sequences: each sequence attends to itself alone, and nothing is padded.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;
use sconce_core::batch::Sequence;

use super::fused::{largest, numbers, sum};
use super::relative::{HeadBias, Relative};
use super::vector::exp;

/// Queries taken together, so that each key and value is loaded once for all of them.
const QUERIES: usize = 4;
/// Vector registers of keys or values taken together.
const WIDE: usize = 2;

/// Self-attention of packed sequences: `[tokens, 3·hidden]` queries, keys and values without their bias, and
/// that bias, to `[tokens, hidden]`.
pub(super) struct PackedAttention {
    pub(super) sequences: Arc<[Sequence]>,
    pub(super) heads: usize,
    pub(super) head: usize,
    pub(super) relative: Option<Arc<Relative>>,
}

impl CustomOp2 for PackedAttention {
    fn name(&self) -> &'static str {
        "packed-attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        qkv_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let qkv = numbers(qkv, qkv_layout)?;
        let bias = numbers(bias, bias_layout)?;
        let hidden = self.heads * self.head;
        let tokens = qkv.len() / (3 * hidden);
        let mut output = vec![0.0; tokens * hidden];
        let longest = self.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0);
        let mut by_head = vec![0.0; longest * hidden];
        for sequence in self.sequences.iter() {
            let rows = &qkv[sequence.start * 3 * hidden..][..sequence.length * 3 * hidden];
            let by_head = &mut by_head[..sequence.length * hidden];
            by_head.par_chunks_mut(sequence.length * self.head).enumerate().for_each_init(
                Scratch::default,
                |scratch, (head, output)| {
                    let relative = self.relative.as_deref().map(|relative| relative.head(head));
                    let at = Columns { hidden, head: self.head, first: head * self.head };
                    Arch::new().dispatch(Head { rows, bias, at, relative, scratch, output });
                },
            );
            let output = &mut output[sequence.start * hidden..][..sequence.length * hidden];
            for (token, row) in output.chunks_exact_mut(hidden).enumerate() {
                for (head, part) in row.chunks_exact_mut(self.head).enumerate() {
                    part.copy_from_slice(
                        &by_head[(head * sequence.length + token) * self.head..][..self.head],
                    );
                }
            }
        }
        Ok((CpuStorage::F32(output), Shape::from((tokens, hidden))))
    }
}

/// Where one head's numbers lie in a row of queries, keys and values.
#[derive(Clone, Copy)]
struct Columns {
    hidden: usize,
    head: usize,
    first: usize,
}

#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
}

/// One head of one sequence.
struct Head<'a> {
    rows: &'a [f32],
    bias: &'a [f32],
    at: Columns,
    relative: Option<HeadBias<'a>>,
    scratch: &'a mut Scratch,
    output: &'a mut [f32],
}

impl WithSimd for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Head { rows, bias, at, relative, scratch, output } = self;
        let wide = WIDE * S::F32_LANES;
        let length = rows.len() / (3 * at.hidden);
        let keys = length.next_multiple_of(wide);
        let columns = at.head.next_multiple_of(wide);
        scratch.queries.resize(length * at.head, 0.0);
        scratch.keys.resize(keys * at.head, 0.0);
        scratch.values.resize(columns * length, 0.0);
        scratch.scores.resize(QUERIES * keys, 0.0);

        let scale = 1.0 / (at.head as f32).sqrt();
        let part =
            |row: usize, which: usize| &rows[row * 3 * at.hidden + which * at.hidden + at.first..][..at.head];
        let part_bias = |which: usize| &bias[which * at.hidden + at.first..][..at.head];
        for (row, query) in scratch.queries.chunks_exact_mut(at.head).enumerate() {
            for ((to, from), bias) in query.iter_mut().zip(part(row, 0)).zip(part_bias(0)) {
                *to = (from + bias) * scale;
            }
        }
        for (panel, keys) in scratch.keys.chunks_exact_mut(wide * at.head).enumerate() {
            for lane in 0..wide.min(length - panel * wide) {
                let key = part(panel * wide + lane, 1);
                for ((d, from), bias) in key.iter().enumerate().zip(part_bias(1)) {
                    keys[d * wide + lane] = from + bias;
                }
            }
        }
        for (panel, values) in scratch.values.chunks_exact_mut(wide * length).enumerate() {
            let first = panel * wide;
            let count = wide.min(at.head - first);
            for (row, to) in values.chunks_exact_mut(wide).enumerate() {
                let from = &part(row, 2)[first..first + count];
                for ((to, from), bias) in to.iter_mut().zip(from).zip(&part_bias(2)[first..]) {
                    *to = from + bias;
                }
            }
        }

        let (key_vectors, _) = S::as_simd_f32s(&scratch.keys);
        let (value_vectors, _) = S::as_simd_f32s(&scratch.values);
        let mut mixed = vec![0.0; QUERIES * columns];
        for first in (0..length).step_by(QUERIES) {
            let query = |r: usize| &scratch.queries[(first + r).min(length - 1) * at.head..][..at.head];
            let queries = [query(0), query(1), query(2), query(3)];
            for (panel, keys_here) in key_vectors.chunks_exact(WIDE * at.head).enumerate() {
                let products = products(simd, queries, keys_here);
                store(simd, products, &mut scratch.scores, keys, panel * wide);
            }
            for (r, scores) in scratch.scores.chunks_exact_mut(keys).enumerate() {
                let scores = &mut scores[..length];
                if let Some(relative) = relative {
                    let query = (first + r).min(length - 1);
                    for (score, bias) in scores.iter_mut().zip(relative.of(query)) {
                        *score += bias;
                    }
                }
                softmax(scores);
            }
            let row = |r: usize| &scratch.scores[r * keys..][..length];
            let rows = [row(0), row(1), row(2), row(3)];
            for (panel, values_here) in value_vectors.chunks_exact(WIDE * length).enumerate() {
                store(simd, products(simd, rows, values_here), &mut mixed, columns, panel * wide);
            }
            for (r, output) in output[first * at.head..].chunks_exact_mut(at.head).take(QUERIES).enumerate() {
                output.copy_from_slice(&mixed[r * columns..][..at.head]);
            }
        }
    }
}

/// `left · panel` for four rows and two vectors of columns.
#[inline(always)]
fn products<S: Simd>(simd: S, left: [&[f32]; QUERIES], panel: &[S::f32s]) -> [[S::f32s; WIDE]; QUERIES] {
    let mut sums = [[simd.splat_f32s(0.0); WIDE]; QUERIES];
    let (panel, _) = panel.as_chunks::<WIDE>();
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
fn store<S: Simd>(_: S, products: [[S::f32s; WIDE]; QUERIES], to: &mut [f32], stride: usize, column: usize) {
    for (products, row) in products.iter().zip(to.chunks_exact_mut(stride)) {
        let (row, _) = S::as_mut_simd_f32s(&mut row[column..column + WIDE * S::F32_LANES]);
        row.copy_from_slice(products);
    }
}

#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let top = largest(scores);
    for score in scores.iter_mut() {
        *score = exp(*score - top);
    }
    let scale = 1.0 / sum(scores, |x| x);
    for score in scores.iter_mut() {
        *score *= scale;
    }
}
