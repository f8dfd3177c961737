//! Products of rows of bytes with AVX-512 VNNI.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512,
};

use super::avx512::{GroupFactors, add_rows, prefetch, values, vectors};
use super::byte_codes::RowGroup;
use super::byte_rows::ByteRows;
use super::format::CodeWidth;
use super::instructions::has_vectors;
use super::panel::Panel;
use super::{GROUP, PANEL, RUN};
use crate::isa::Isa;

/// Multiplies rows with a panel, if there are instructions for it.
pub(super) fn multiply(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &ByteRows,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) -> bool {
    if !has_vectors(isa) {
        return false;
    }
    let mut first = 0;
    while first < rows.rows() {
        // SAFETY: the processor has these instructions.
        unsafe {
            match rows.rows() - first {
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
    rows: &ByteRows,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    let groups = rows.some(*first);
    let sums = match (panel.format.width, panel.format.group) {
        (CodeWidth::Four, _) => products::<R, { CodeWidth::Four.run_bytes() }, false>(panel, groups),
        (CodeWidth::Six, GROUP) => products::<R, { CodeWidth::Six.run_bytes() }, false>(panel, groups),
        (CodeWidth::Six, _) => products::<R, { CodeWidth::Six.run_bytes() }, true>(panel, groups),
        (CodeWidth::Eight, GROUP) => products::<R, { CodeWidth::Eight.run_bytes() }, false>(panel, groups),
        (CodeWidth::Eight, _) => products::<R, { CodeWidth::Eight.run_bytes() }, true>(panel, groups),
    };
    for sums in sums {
        put(*first, &values(sums));
        *first += 1;
    }
}

/// The products of `R` rows with a panel whose runs have `BYTES` bytes. Its groups have a run (`HALVES`) or two.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn products<'a, const R: usize, const BYTES: usize, const HALVES: bool>(
    panel: &Panel<'_>,
    rows: impl Iterator<Item = &'a [RowGroup; R]>,
) -> [__m512; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let mut factors = GroupFactors::from(panel, 0);
    let (runs, _) = panel.codes.as_chunks::<BYTES>();
    for ([first, second], rows) in runs.as_chunks::<{ GROUP / RUN }>().0.iter().zip(rows) {
        let mut dots = [_mm512_setzero_si512(); R];
        prefetch(first);
        prefetch(second);
        add_run::<R, BYTES, 0>(&mut dots, first, rows);
        let mut totals = [_mm512_setzero_ps(); R];
        if HALVES {
            let [scale, minimum] = factors.next();
            for ((total, dot), row) in totals.iter_mut().zip(&mut dots).zip(rows) {
                let product = _mm512_mul_ps(_mm512_cvtepi32_ps(*dot), scale);
                *total = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(row.half_sums[0]), product);
                *dot = _mm512_setzero_si512();
            }
        }
        add_run::<R, BYTES, 4>(&mut dots, second, rows);
        let [scale, minimum] = factors.next();
        for (((sum, total), dot), row) in sums.iter_mut().zip(totals).zip(dots).zip(rows) {
            let codes = if HALVES { row.half_sums[1] } else { row.sum };
            let dot = _mm512_cvtepi32_ps(dot);
            let product = if HALVES { _mm512_fmadd_ps(dot, scale, total) } else { _mm512_mul_ps(dot, scale) };
            let total = _mm512_fnmadd_ps(minimum, _mm512_set1_ps(codes), product);
            *sum = _mm512_fmadd_ps(total, _mm512_set1_ps(row.scale), *sum);
        }
    }
    sums
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
        add(dots, codes, rows, FIRST + at);
    }
}

/// Adds the products of codes with four inputs of each row.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn add<const R: usize>(dots: &mut [__m512i; R], codes: __m512i, rows: &[RowGroup; R], word: usize) {
    let words = rows.as_ptr().cast::<i32>().wrapping_add(word);
    // SAFETY: there is a row for each dot product, and `words` points to four inputs of the first.
    unsafe { add_rows::<RowGroup>(dots.iter_mut(), codes, words) };
}
