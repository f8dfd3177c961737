//! bf16 numbers, and what is done to them and to f32 rows between products.

use std::arch::x86_64::{__m256i, _mm256_storeu_si256, _mm512_cvtneps_pbh, _mm512_loadu_ps};

use super::tiles::Amx;
use crate::rows::Norm;

/// Rounds 16 numbers to bf16, NaN staying NaN.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(super) fn narrow(from: &[f32; 16], to: &mut [u16; 16]) {
    // SAFETY: both sides are 16 numbers long.
    unsafe {
        let rounded: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(from.as_ptr())));
        _mm256_storeu_si256(to.as_mut_ptr().cast(), rounded);
    }
}

/// Rounds `from` to bf16; lengths are multiples of 16.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(super) fn narrow_all(from: &[f32], to: &mut [u16]) {
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        narrow(from, to);
    }
}

/// Normalises the rows of `x` and keeps them rounded in `rounded` too; both have rows `stride` apart, and what lies
/// behind the norm's width is left as it is.
pub fn norm_rows(_: Amx, norm: &Norm, x: &mut [f32], rounded: &mut [u16], stride: usize) {
    assert!(stride >= norm.weight.len() && stride.is_multiple_of(16) && rounded.len() >= x.len());
    // SAFETY: an `Amx` vouches for the vectors.
    unsafe { norm_all(norm, x, rounded, stride) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
fn norm_all(norm: &Norm, x: &mut [f32], rounded: &mut [u16], stride: usize) {
    for (row, rounded) in x.chunks_exact_mut(stride).zip(rounded.chunks_exact_mut(stride)) {
        norm.row(&mut row[..norm.weight.len()]);
        narrow_all(row, rounded);
    }
}

/// The GELU to 1.5e-4, well below what bf16 keeps: erf by a polynomial that reaches one at four.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    const REACH: f32 = 4.0;
    const ERF: [f32; 8] = [
        0.797_397_5,
        -0.131_784_12,
        0.019_012_037,
        -0.002_013_116_7,
        0.000_149_720_63,
        -7.314_802e-6,
        2.084_078_8e-7,
        -2.602_79e-9,
    ];
    let reached = x.clamp(-REACH, REACH);
    let square = reached * reached;
    let curve = ERF.iter().rev().fold(0.0, |sum: f32, c| sum.mul_add(square, *c));
    let erf = (reached * curve).clamp(-1.0, 1.0);
    let half = 0.5 * x;
    half.mul_add(erf, half)
}

/// `2^x` for x <= 0, to 6e-5: next to 0 far below, and what is not a number stays so.
#[inline(always)]
pub(super) fn power_of_two(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const CURVE: [f32; 5] = [1.0, std::f32::consts::LN_2, 0.240_226_5, 0.055_504_11, 0.009_618_13];
    let x = if x < -125.0 { -125.0 } else { x };
    let rounded = x + ROUND;
    let rest = x - (rounded - ROUND);
    let tail = CURVE.iter().rev().fold(0.0, |sum: f32, c| sum.mul_add(rest, *c));
    f32::from_bits((rounded.to_bits() << 23).wrapping_add(tail.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_gelu_is_nearer_than_bf16_can_tell() {
        for step in -12000..=12000 {
            let x = step as f32 / 1000.0;
            let off = (gelu(x) - crate::math::gelu(x)).abs();
            assert!(off < 2e-4, "gelu({x}) is off by {off}");
        }
        assert!(gelu(f32::NAN).is_nan());
    }

    #[test]
    fn powers_of_two_are_right() {
        for step in 0..12400 {
            let x = -(step as f32) / 100.0;
            let off = (f64::from(power_of_two(x)) / f64::from(x).exp2() - 1.0).abs();
            assert!(off < 6e-5, "2^{x} is off by {off}");
        }
        assert!(power_of_two(-1e9) < 1e-30 && power_of_two(f32::NAN).is_nan());
    }
}
