//! Conversion of rows between f32 and bf16.

use std::arch::x86_64::{
    _mm256_loadu_si256, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_slli_epi32, _mm512_storeu_ps,
};

use super::convert::{narrow, widen};
use super::panels::STEP;
use super::tiles::Bf16;
use super::vectors::{load, round};

/// Values of a vector.
const LANES: usize = 16;

/// Rounds a row to bf16.
pub fn narrow_row(_: Bf16, from: &[f32], to: &mut [u16]) {
    let ((from, rest), (to, rest_to)) = (from.as_chunks::<STEP>(), to.as_chunks_mut::<STEP>());
    for (from, to) in from.iter().zip(to) {
        // SAFETY: a `Bf16` guarantees the vectors.
        unsafe { round(load(from), to) }
    }
    rest_to.iter_mut().zip(rest).for_each(|(to, x)| *to = narrow(*x));
}

/// Converts a row of bf16 to f32.
pub fn widen_row(_: Bf16, from: &[u16], to: &mut [f32]) {
    let ((from, rest), (to, rest_to)) = (from.as_chunks::<LANES>(), to.as_chunks_mut::<LANES>());
    for (from, to) in from.iter().zip(to) {
        // SAFETY: a `Bf16` guarantees the vectors.
        unsafe { widen_vector(from, to) }
    }
    widen(rest, rest_to);
}

#[target_feature(enable = "avx512f")]
#[inline]
fn widen_vector(from: &[u16; LANES], to: &mut [f32; LANES]) {
    // SAFETY: 16 short values are half a vector, and 16 values a whole one.
    unsafe {
        let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
        _mm512_storeu_ps(to.as_mut_ptr(), _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)));
    }
}
