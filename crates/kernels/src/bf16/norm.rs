//! Norms of panels.

use std::arch::x86_64::{
    _mm512_add_ps, _mm512_fmadd_ps, _mm512_maskz_sub_ps, _mm512_mul_ps, _mm512_reduce_add_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_sub_ps,
};

use super::panels::{Panels, STEP};
use super::tiles::Bf16;
use super::vectors::{add, load, round, store};
use crate::rows::{Norm, NormStatistics};

/// Normalizes the first `rows` rows of `x`, which are zero beyond the norm's width, into `rounded`, and in place if
/// `keeps`.
pub fn norm_rows(
    _: Bf16,
    norm: &Norm,
    rows: usize,
    x: &mut Panels<f32>,
    rounded: &mut Panels<u16>,
    keeps: bool,
) {
    let width = norm.weight.len();
    assert!(x.panels() == width.div_ceil(STEP) && rounded.panels() == x.panels());
    assert!(rows <= x.height() && rows <= rounded.height());
    let padded = |values: &[f32]| -> Vec<[f32; STEP]> {
        let mut padded = values.to_vec();
        padded.resize(width.next_multiple_of(STEP), 0.0);
        padded.as_chunks().0.to_vec()
    };
    let weights: Vec<_> = padded(&norm.weight).into_iter().zip(padded(&norm.shift)).collect();
    for row in 0..rows {
        // SAFETY: a `Bf16` guarantees the vectors.
        unsafe { norm_row(norm, &weights, row, x, rounded, keeps) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn norm_row(
    norm: &Norm,
    weights: &[([f32; STEP], [f32; STEP])],
    row: usize,
    x: &mut Panels<f32>,
    rounded: &mut Panels<u16>,
    keeps: bool,
) {
    let width = norm.weight.len() as f32;
    // Values beyond the width, in the last panel only, do not count.
    let last = weights.len() - 1;
    let counted = u32::MAX >> (weights.len() * STEP - norm.weight.len());
    let nothing = [_mm512_setzero_ps(); 2];
    let sum = |pair: [_; 2]| _mm512_reduce_add_ps(_mm512_add_ps(pair[0], pair[1]));
    let mut sums = nothing;
    for panel in 0..weights.len() {
        sums = add(sums, load(x.row(panel, row)));
    }
    let mean = match norm.statistics {
        NormStatistics::MeanVariance => sum(sums) / width,
        NormStatistics::MeanSquare => 0.0,
    };
    let middle = _mm512_set1_ps(mean);
    let mut squares = nothing;
    for panel in 0..weights.len() {
        let values = load(x.row(panel, row));
        let counted = if panel == last { counted } else { u32::MAX };
        let values = [
            _mm512_maskz_sub_ps(counted as u16, values[0], middle),
            _mm512_maskz_sub_ps((counted >> 16) as u16, values[1], middle),
        ];
        squares = [0, 1].map(|half| _mm512_fmadd_ps(values[half], values[half], squares[half]));
    }
    let variance = sum(squares) / width;
    let scale = _mm512_set1_ps(1.0 / (variance + norm.epsilon).sqrt());
    for (panel, (weight, shift)) in weights.iter().enumerate() {
        let values = load(x.row(panel, row)).map(|x| _mm512_mul_ps(_mm512_sub_ps(x, middle), scale));
        let (weight, shift) = (load(weight), load(shift));
        let values = [0, 1].map(|half| _mm512_fmadd_ps(values[half], weight[half], shift[half]));
        if keeps {
            store(values, x.row_mut(panel, row));
        }
        round(values, rounded.row_mut(panel, row));
    }
}
