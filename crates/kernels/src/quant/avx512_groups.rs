//! Products of rows of 8 bits with formats whose groups have factors of their own, with AVX-512 VNNI. The product of a group is
//! an integer: tiles compute the same.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtepi32_ps, _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_fnmadd_ps,
    _mm512_mul_ps, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_setzero_si512,
};

use super::avx512::{add_rows, halves, prefetch_after, vectors};
use super::avx512_rows::ByteProducts;
use super::byte_codes::RowGroup;
use super::format::CodeWidth;
use super::panel::Panel;
use super::rows::SomeRows;
use super::{GROUP, RUN};

impl ByteProducts for RowGroup {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn products<const R: usize>(panel: &Panel<'_>, rows: SomeRows<'_, R, RowGroup>) -> [__m512; R] {
        const FOUR: usize = CodeWidth::Four.run_bytes();
        const SIX: usize = CodeWidth::Six.run_bytes();
        const EIGHT: usize = CodeWidth::Eight.run_bytes();
        match (panel.format.width, panel.format.has_minimums) {
            (CodeWidth::Four, false) => products::<R, FOUR, false>(panel, rows),
            (CodeWidth::Four, true) => products::<R, FOUR, true>(panel, rows),
            (CodeWidth::Six, false) => products::<R, SIX, false>(panel, rows),
            (CodeWidth::Six, true) => products::<R, SIX, true>(panel, rows),
            (CodeWidth::Eight, false) => products::<R, EIGHT, false>(panel, rows),
            (CodeWidth::Eight, true) => products::<R, EIGHT, true>(panel, rows),
        }
    }
}

/// The products of `R` rows with a panel whose runs have `BYTES` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn products<const R: usize, const BYTES: usize, const MINIMUMS: bool>(
    panel: &Panel<'_>,
    rows: SomeRows<'_, R, RowGroup>,
) -> [__m512; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let less_zero = _mm512_set1_epi16(-i16::from(panel.format.zero));
    let (runs, _) = panel.codes.as_chunks::<BYTES>();
    let groups = runs.as_chunks::<{ GROUP / RUN }>().0.iter().zip(rows.blocks());
    for (group, ([first, second], rows)) in groups.enumerate() {
        let mut dots = [_mm512_setzero_si512(); R];
        if !MINIMUMS {
            for (dot, row) in dots.iter_mut().zip(rows) {
                *dot = _mm512_dpwssd_epi32(*dot, less_zero, _mm512_set1_epi32(row.half_sums));
            }
        }
        prefetch_after(first);
        prefetch_after(second);
        add_run::<R, BYTES, 0>(&mut dots, first, rows);
        add_run::<R, BYTES, 4>(&mut dots, second, rows);
        let scale = halves(panel.scales, group);
        let minimum = if MINIMUMS { halves(panel.minimums, group) } else { _mm512_setzero_ps() };
        for ((sum, dot), row) in sums.iter_mut().zip(dots).zip(rows) {
            *sum = add_group::<MINIMUMS>(*sum, dot, [scale, minimum], row);
        }
    }
    sums
}

/// Adds the dot products of a row with a group, scaled, to its sums.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add_group<const MINIMUMS: bool>(
    sum: __m512,
    dot: __m512i,
    [scale, minimum]: [__m512; 2],
    row: &RowGroup,
) -> __m512 {
    let mut product = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
    if MINIMUMS {
        product = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(row.sum), product);
    }
    _mm512_fmadd_ps(product, _mm512_set1_ps(row.scale), sum)
}

/// Adds the products of a run of `BYTES` bytes with the words of each row from `FIRST` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn add_run<const R: usize, const BYTES: usize, const FIRST: usize>(
    dots: &mut [__m512i; R],
    run: &[u8; BYTES],
    rows: &[RowGroup; R],
) {
    for (at, codes) in vectors(run).into_iter().enumerate() {
        let words = rows.as_ptr().cast::<i32>().wrapping_add(FIRST + at);
        // SAFETY: there is a row for each dot product, and `words` points to four inputs of the first.
        unsafe { add_rows::<RowGroup>(dots.iter_mut(), codes, words) };
    }
}
