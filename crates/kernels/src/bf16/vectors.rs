//! AVX-512 helpers on rows of 32 f32 values.

use std::arch::x86_64::{
    __m256i, __m512, __m512i, _CMP_LT_OQ, _mm256_loadu_si256, _mm512_abs_ps, _mm512_add_epi32, _mm512_add_ps,
    _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh,
    _mm512_div_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_mask_mov_ps, _mm512_max_ps, _mm512_min_ps,
    _mm512_mul_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_slli_epi32, _mm512_storeu_ps,
    _mm512_storeu_si512, _mm512_sub_ps,
};
use std::f32::consts::LOG2_E;

use super::panels::STEP;

/// 32 values.
pub(super) type Pair = [__m512; 2];

/// Loads 32 values.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load(from: &[f32; STEP]) -> Pair {
    // SAFETY: 32 values are two vectors.
    unsafe { [_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from.as_ptr().add(16))] }
}

/// Stores 32 values.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store(values: Pair, to: &mut [f32; STEP]) {
    // SAFETY: 32 values are two vectors.
    unsafe {
        _mm512_storeu_ps(to.as_mut_ptr(), values[0]);
        _mm512_storeu_ps(to.as_mut_ptr().add(16), values[1]);
    }
}

/// Rounds 32 values to bf16; NaN stays NaN.
#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
pub(super) fn round(values: Pair, to: &mut [u16; STEP]) {
    // SAFETY: 32 short values are one vector.
    unsafe {
        let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(values[1], values[0]));
        _mm512_storeu_si512(to.as_mut_ptr().cast(), rounded);
    }
}

/// Widens 32 values of bf16.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn widen(from: &[u16; STEP]) -> Pair {
    // SAFETY: 32 short values are two halves of a vector.
    let (first, second) = unsafe {
        (_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(16).cast()))
    };
    [shifted(first), shifted(second)]
}

/// Short values as the upper halves of f32.
#[target_feature(enable = "avx512f")]
#[inline]
fn shifted(values: __m256i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16))
}

/// Adds 32 values to 32 others.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add(a: Pair, b: Pair) -> Pair {
    [_mm512_add_ps(a[0], b[0]), _mm512_add_ps(a[1], b[1])]
}

/// Multiplies 32 values by 32 others.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn multiply(a: Pair, b: Pair) -> Pair {
    [_mm512_mul_ps(a[0], b[0]), _mm512_mul_ps(a[1], b[1])]
}

/// GELU with an error of 2e-4, below the precision of bf16: erf as a polynomial that reaches 1 at 4.
#[target_feature(enable = "avx512f,fma")]
#[inline]
pub(super) fn gelu(x: __m512) -> __m512 {
    const REACH: f32 = 4.0;
    const ERF: [f32; 7] = [
        0.795_740_54,
        -0.129_108_83,
        0.017_527_387,
        -0.001_624_376,
        9.552_789e-5,
        -3.177_660_6e-6,
        4.517_655e-8,
    ];
    let number = |x: f32| _mm512_set1_ps(x);
    // min and max return the second operand if one is NaN.
    let reached = _mm512_max_ps(number(-REACH), _mm512_min_ps(number(REACH), x));
    let square = _mm512_mul_ps(reached, reached);
    let mut curve = number(ERF[6]);
    for factor in ERF[..6].iter().rev() {
        curve = _mm512_fmadd_ps(curve, square, number(*factor));
    }
    let half = _mm512_mul_ps(number(0.5), x);
    _mm512_fmadd_ps(half, _mm512_mul_ps(reached, curve), half)
}

/// SiLU with a relative error of 2e-4, below the precision of bf16.
#[target_feature(enable = "avx512f,fma")]
#[inline]
pub(super) fn silu(x: __m512) -> __m512 {
    let one = _mm512_set1_ps(1.0);
    // exp(-|x|), of which the sigmoid of both signs follows.
    let power = power_of_two(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-LOG2_E)));
    let is_negative = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_setzero_ps());
    let share = _mm512_mask_mov_ps(one, is_negative, power);
    _mm512_mul_ps(x, _mm512_div_ps(share, _mm512_add_ps(one, power)))
}

/// `2^x` for x <= 0 with an error of 1e-4; about 0 far below, NaN for NaN.
#[target_feature(enable = "avx512f,fma")]
#[inline]
pub(super) fn power_of_two(x: __m512) -> __m512 {
    const ROUND: f32 = 12_582_912.0;
    const CURVE: [f32; 4] = [0.999_928_06, 0.693_260_97, 0.242_611_13, 0.055_171_67];
    let number = |x: f32| _mm512_set1_ps(x);
    let x = _mm512_max_ps(number(-125.0), x);
    let rounded = _mm512_add_ps(x, number(ROUND));
    let rest = _mm512_sub_ps(x, _mm512_sub_ps(rounded, number(ROUND)));
    let mut tail = number(CURVE[3]);
    for factor in CURVE[..3].iter().rev() {
        tail = _mm512_fmadd_ps(tail, rest, number(*factor));
    }
    let power = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
    _mm512_castsi512_ps(_mm512_add_epi32(power, _mm512_castps_si512(tail)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bf16::Bf16;
    use crate::isa::Isa;

    fn of(f: impl Fn(__m512) -> __m512, x: f32) -> f32 {
        let mut to = [0.0; 16];
        // SAFETY: the caller has checked for AVX-512; 16 values are one.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), f(_mm512_set1_ps(x))) };
        to[7]
    }

    #[test]
    fn the_short_gelu_is_nearer_than_bf16_can_tell() {
        if Bf16::of(Isa::Avx512Bf16).is_none() {
            return;
        }
        // SAFETY: a `Bf16` guarantees the vectors.
        let short = |x| of(|x| unsafe { gelu(x) }, x);
        for step in -12000..=12000 {
            let x = step as f32 / 1000.0;
            let off = (short(x) - crate::math::gelu(x)).abs();
            assert!(off < 2e-4, "gelu({x}) is off by {off}");
        }
        assert!(short(f32::NAN).is_nan() && short(-1e4).abs() < 1e-2 && (short(1e4) - 1e4).abs() < 1e-1);
    }

    #[test]
    fn the_short_silu_is_nearer_than_bf16_can_tell() {
        if Bf16::of(Isa::Avx512Bf16).is_none() {
            return;
        }
        // SAFETY: a `Bf16` guarantees the vectors.
        let short = |x| of(|x| unsafe { silu(x) }, x);
        for step in -8000..=8000 {
            let x = step as f32 / 100.0;
            let off = (short(x) - crate::math::silu(x)).abs();
            assert!(off <= 2e-4 * crate::math::silu(x).abs() + 1e-30, "silu({x}) is off by {off}");
        }
        assert!(short(f32::NAN).is_nan() && short(-1e4).abs() < 1e-30 && (short(1e4) - 1e4).abs() < 1.0);
    }

    #[test]
    fn powers_of_two_are_right() {
        if Bf16::of(Isa::Avx512Bf16).is_none() {
            return;
        }
        // SAFETY: a `Bf16` guarantees the vectors.
        let power = |x| of(|x| unsafe { power_of_two(x) }, x);
        for step in 0..12400 {
            let x = -(step as f32) / 100.0;
            let off = (f64::from(power(x)) / f64::from(x).exp2() - 1.0).abs();
            assert!(off < 1e-4, "2^{x} is off by {off}");
        }
        assert!(power(-1e9) < 1e-30 && power(f32::NEG_INFINITY) < 1e-30 && power(f32::NAN).is_nan());
    }
}
