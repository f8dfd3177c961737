//! Products with AVX-512 VNNI.

use std::arch::x86_64::{
    __m512, __m512i, _mm_loadu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_and_si512,
    _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi16, _mm512_storeu_ps,
};
use std::ops::Range;

use super::codes::Codes;
use super::codes_avx512::has_vectors;
use super::format::CodeWidth;
use super::panel::Panel;
use super::rows::{QuantizedRows, SomeRows};
use super::{GROUP, PANEL};
use crate::isa::Isa;

/// Bytes of a vector.
pub(super) const VECTOR: usize = 64;

/// Multiplies some rows with a panel, if there are instructions for it. The first row begins a block.
pub(super) fn multiply(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    part: Range<usize>,
    put: &mut impl FnMut(usize, &[f32; PANEL]),
) -> bool {
    if !has_vectors(isa) {
        return false;
    }
    let mut first = part.start;
    while first < part.end {
        // SAFETY: the processor has these instructions.
        unsafe {
            match part.end - first {
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
    let sums = products(panel, rows.some::<R>(*first));
    for sums in sums {
        put(*first, &values(sums));
        *first += 1;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn products<const R: usize>(panel: &Panel<'_>, rows: SomeRows<'_, R>) -> [__m512; R] {
    let format = panel.format;
    let mut sums = [_mm512_setzero_ps(); R];
    let mut factors = GroupFactors::of(panel);
    for (group, codes) in panel.codes.chunks_exact(format.group_bytes()).enumerate() {
        let [scale, minimum] = factors.next();
        match (format.width, format.group) {
            (CodeWidth::Four, _) => {
                let dots = dots_of_four_bits(codes, rows.codes(group));
                add_group(&mut sums, dots, [scale, minimum], rows.sums(group), rows.scales(group));
            }
            (CodeWidth::Eight, GROUP) => {
                let dots = dots_of_eight_bits::<R, 8>(codes, rows.codes(group), 0);
                add_group(&mut sums, dots, [scale, minimum], rows.sums(group), rows.scales(group));
            }
            (CodeWidth::Eight, _) => {
                let (whole, half) = (group / 2, group % 2);
                let dots = dots_of_eight_bits::<R, 4>(codes, rows.codes(whole), 4 * half);
                let totals = rows.halves(whole).map(|halves| halves[half]);
                add_group(&mut sums, dots, [scale, minimum], &totals, rows.scales(whole));
            }
        }
    }
    sums
}

/// Adds the products of a group, from the dot products of codes, to the sums of each row.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_group<const R: usize>(
    sums: &mut [__m512; R],
    dots: [__m512i; R],
    factors: [__m512; 2],
    totals: &[f32; R],
    scales: &[f32; R],
) {
    for (row, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
        *sum = add_scaled(*sum, dot, factors, totals[row], scales[row]);
    }
}

/// Adds the products of a row's group with a panel to its sums. The factors of the group are its scale and its minimum; the
/// codes of the row have a sum and a scale.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add_scaled(
    sum: __m512,
    dot: __m512i,
    [scale, minimum]: [__m512; 2],
    row_sum: f32,
    row_scale: f32,
) -> __m512 {
    let part = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
    let part = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(row_sum), part);
    _mm512_fmadd_ps(part, _mm512_set1_ps(row_scale), sum)
}

/// The scale and the minimum of each group of a panel, one after the other.
pub(super) struct GroupFactors<'a> {
    panel: &'a Panel<'a>,
    group: usize,
    /// Groups left in the super-block.
    left: usize,
    scale: __m512,
    minimum: __m512,
}

impl<'a> GroupFactors<'a> {
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn of(panel: &'a Panel<'a>) -> GroupFactors<'a> {
        let none = _mm512_setzero_ps();
        GroupFactors { panel, group: 0, left: 0, scale: none, minimum: none }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    pub(super) fn next(&mut self) -> [__m512; 2] {
        let (panel, format) = (self.panel, self.panel.format);
        if self.left == 0 {
            self.left = format.groups;
            self.scale = halves(panel.scales, self.group / format.groups);
            if format.has_minimums {
                self.minimum = halves(panel.minimums, self.group / format.groups);
            }
        }
        self.left -= 1;
        let (mut scale, mut minimum) = (self.scale, self.minimum);
        if format.is_super() {
            scale = _mm512_mul_ps(scale, signed(panel.group_scales, self.group));
        }
        if !format.has_minimums {
            minimum = _mm512_mul_ps(scale, _mm512_set1_ps(f32::from(format.zero)));
        } else if format.is_super() {
            minimum = _mm512_mul_ps(minimum, unsigned(panel.group_minimums, self.group));
        }
        self.group += 1;
        [scale, minimum]
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn dots_of_four_bits<const R: usize>(codes: &[u8], rows: &[Codes; R]) -> [__m512i; R] {
    let mut dots = [[_mm512_setzero_si512(); 2]; R];
    for (at, codes) in codes.as_chunks::<VECTOR>().0.iter().enumerate().take(4) {
        let [first, second] = nibbles(load(codes));
        for (dots, row) in dots.iter_mut().zip(rows) {
            add(dots, first, [row.high[at], row.low[at]]);
            add(dots, second, [row.high[at + 4], row.low[at + 4]]);
        }
    }
    dots.map(|dots| joined(dots))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn dots_of_eight_bits<const R: usize, const WORDS: usize>(
    codes: &[u8],
    rows: &[Codes; R],
    first: usize,
) -> [__m512i; R] {
    let mut dots = [[_mm512_setzero_si512(); 2]; R];
    for (at, codes) in codes.as_chunks::<VECTOR>().0.iter().enumerate().take(WORDS) {
        let codes = load(codes);
        for (dots, row) in dots.iter_mut().zip(rows) {
            add(dots, codes, [row.high[first + at], row.low[first + at]]);
        }
    }
    dots.map(|dots| joined(dots))
}

/// The low and the high four bits of each byte.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn nibbles(codes: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(0x0f);
    [_mm512_and_si512(codes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask)]
}

/// The 16 values of a vector.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn values(vector: __m512) -> [f32; PANEL] {
    let mut values = [0.0; PANEL];
    // SAFETY: 16 values are one vector.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), vector) };
    values
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
pub(super) fn joined([high, low]: [__m512i; 2]) -> __m512i {
    _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low)
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load(bytes: &[u8; VECTOR]) -> __m512i {
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
