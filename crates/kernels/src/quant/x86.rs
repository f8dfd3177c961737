//! Products with AVX-512 VNNI.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi16, _mm512_storeu_ps,
};

use super::PANEL;
use super::format::CodeWidth;
use super::panel::Panel;
use super::rows::{QuantizedRow, QuantizedRows};
use crate::detect::has_avx512_vnni;
use crate::isa::Isa;

/// Bytes of a vector.
const VECTOR: usize = 64;

/// Multiplies all rows with a panel, if there are instructions for it.
pub(super) fn multiply(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    put: &mut impl FnMut(usize, &[f32; PANEL]),
) -> bool {
    if !(Isa::Avx512..=Isa::Amx).contains(&isa) || !has_avx512_vnni() {
        return false;
    }
    let (mut first, count) = (0, rows.rows());
    while first < count {
        // SAFETY: the processor has these instructions.
        unsafe {
            match count - first {
                8.. => some_rows::<8>(panel, rows, &mut first, put),
                4.. => some_rows::<4>(panel, rows, &mut first, put),
                2.. => some_rows::<2>(panel, rows, &mut first, put),
                _ => some_rows::<1>(panel, rows, &mut first, put),
            }
        }
    }
    true
}

/// Multiplies the next `R` rows with a panel. A row has the same result for every `R`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn some_rows<const R: usize>(
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    first: &mut usize,
    put: &mut impl FnMut(usize, &[f32; PANEL]),
) {
    let own: [QuantizedRow<'_>; R] = std::array::from_fn(|n| rows.row(*first + n));
    let sums = products(panel, &own);
    for sums in sums {
        let mut values = [0.0; PANEL];
        // SAFETY: 16 values are one vector.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), sums) };
        put(*first, &values);
        *first += 1;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn products<const R: usize>(panel: &Panel<'_>, rows: &[QuantizedRow<'_>; R]) -> [__m512; R] {
    let format = panel.format;
    let (bytes, size) = (format.group_bytes(), format.group);
    let zero = _mm512_set1_ps(f32::from(format.zero));
    let mut sums = [_mm512_setzero_ps(); R];
    let (mut factor, mut minimum_factor) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    let mut left = 0;
    for (group, codes) in panel.codes.chunks_exact(bytes).enumerate() {
        if left == 0 {
            left = format.groups;
            factor = halves(panel.scales, group / format.groups);
            if format.has_minimums {
                minimum_factor = halves(panel.minimums, group / format.groups);
            }
        }
        left -= 1;
        let (mut scale, mut minimum) = (factor, minimum_factor);
        if format.is_super() {
            scale = _mm512_mul_ps(factor, signed(panel.group_scales, group));
        }
        if !format.has_minimums {
            minimum = _mm512_mul_ps(scale, zero);
        } else if format.is_super() {
            minimum = _mm512_mul_ps(minimum_factor, unsigned(panel.group_minimums, group));
        }
        let dots = match (format.width, size) {
            (CodeWidth::Four, _) => dots_of_four_bits(codes, group, rows),
            (CodeWidth::Eight, 16) => dots_of_eight_bits::<R, 4>(codes, group, rows),
            (CodeWidth::Eight, _) => dots_of_eight_bits::<R, 8>(codes, group, rows),
        };
        for ((sum, dot), row) in sums.iter_mut().zip(dots).zip(rows) {
            let part = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
            let part = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(row.sum(group, size)), part);
            *sum = _mm512_fmadd_ps(part, _mm512_set1_ps(row.scale(group, size)), *sum);
        }
    }
    sums
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn dots_of_four_bits<const R: usize>(
    codes: &[u8],
    group: usize,
    rows: &[QuantizedRow<'_>; R],
) -> [__m512i; R] {
    let mask = _mm512_set1_epi8(0x0f);
    let mut dots = [[_mm512_setzero_si512(); 2]; R];
    let words: [&[[i32; 2]; 8]; R] = std::array::from_fn(|n| &rows[n].words.as_chunks().0[group]);
    for (at, codes) in codes.as_chunks::<VECTOR>().0.iter().enumerate() {
        let both = load(codes);
        let first = _mm512_and_si512(both, mask);
        let second = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
        for (dots, words) in dots.iter_mut().zip(&words) {
            add(dots, first, words[at]);
            add(dots, second, words[at + 4]);
        }
    }
    dots.map(|dots| joined(dots))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn dots_of_eight_bits<const R: usize, const WORDS: usize>(
    codes: &[u8],
    group: usize,
    rows: &[QuantizedRow<'_>; R],
) -> [__m512i; R] {
    let mut dots = [[_mm512_setzero_si512(); 2]; R];
    let words: [&[[i32; 2]; WORDS]; R] = std::array::from_fn(|n| &rows[n].words.as_chunks().0[group]);
    for (at, codes) in codes.as_chunks::<VECTOR>().0.iter().enumerate() {
        let codes = load(codes);
        for (dots, words) in dots.iter_mut().zip(&words) {
            add(dots, codes, words[at]);
        }
    }
    dots.map(|dots| joined(dots))
}

/// Adds the products of codes with the high and the low bytes of four inputs.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn add([high, low]: &mut [__m512i; 2], codes: __m512i, words: [i32; 2]) {
    *high = _mm512_dpbusd_epi32(*high, codes, _mm512_set1_epi32(words[0]));
    *low = _mm512_dpbusd_epi32(*low, codes, _mm512_set1_epi32(words[1]));
}

/// `256 · high + low`.
#[target_feature(enable = "avx512f")]
#[inline]
fn joined([high, low]: [__m512i; 2]) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: 64 bytes are one vector.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The f16 values of super-block `block`.
#[target_feature(enable = "avx512f")]
#[inline]
fn halves(values: &[u16], block: usize) -> __m512 {
    let values: &[u16; PANEL] = &values.as_chunks().0[block];
    // SAFETY: 16 halves are half a vector.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
}

/// The integers of group `group`.
#[target_feature(enable = "avx512f")]
#[inline]
fn signed(values: &[i8], group: usize) -> __m512 {
    let values: &[i8; PANEL] = &values.as_chunks().0[group];
    // SAFETY: 16 bytes are a quarter of a vector.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values.as_ptr().cast()))) }
}

/// The integers of group `group`.
#[target_feature(enable = "avx512f")]
#[inline]
fn unsigned(values: &[u8], group: usize) -> __m512 {
    let values: &[u8; PANEL] = &values.as_chunks().0[group];
    // SAFETY: 16 bytes are a quarter of a vector.
    unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(values.as_ptr().cast()))) }
}
