//! Softmax of attention on tiles: f32 scores to bf16 probabilities.

use std::arch::x86_64::{
    __m512, _mm512_fmsub_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_reduce_max_ps,
    _mm512_set1_ps, _mm512_setzero_ps,
};
use std::ops::Range;

use super::panels::STEP;
use super::vectors::{add, load, power_of_two, round};
use crate::attention::squash;

/// Computes unnormalized probabilities of the `seen` scores of a row and returns the factor that normalizes them. Other
/// scores get a probability of about 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
#[inline]
pub(super) fn softmax_unscaled(
    scores: &mut [f32],
    seen: Range<usize>,
    (mut scale, softcap): (f32, Option<f32>),
    bias: Option<&[f32]>,
    probabilities: &mut [u16],
) -> f32 {
    if let Some(cap) = softcap {
        scores[seen.clone()].iter_mut().for_each(|score| *score *= scale);
        squash(&mut scores[seen.clone()], cap);
        scale = 1.0;
    }
    if let Some(bias) = bias {
        for (score, bias) in scores[seen.clone()].iter_mut().zip(bias) {
            *score = score.mul_add(scale, *bias);
        }
        scale = 1.0;
    }
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    let scores = scores.as_chunks::<STEP>().0;
    let mut tops = [_mm512_set1_ps(f32::NEG_INFINITY); 2];
    for chunk in scores {
        let [left, right] = load(chunk);
        tops = [_mm512_max_ps(tops[0], left), _mm512_max_ps(tops[1], right)];
    }
    let top = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(tops[0], tops[1])));
    let scale = _mm512_set1_ps(scale * std::f32::consts::LOG2_E);
    let shift = _mm512_mul_ps(top, scale);
    let power = |score: __m512| power_of_two(_mm512_fmsub_ps(score, scale, shift));
    let mut sums = [_mm512_setzero_ps(); 2];
    for (chunk, to) in scores.iter().zip(probabilities.as_chunks_mut().0) {
        let [left, right] = load(chunk);
        let probability = [power(left), power(right)];
        sums = add(sums, probability);
        round(probability, to);
    }
    1.0 / (_mm512_reduce_add_ps(sums[0]) + _mm512_reduce_add_ps(sums[1]))
}
