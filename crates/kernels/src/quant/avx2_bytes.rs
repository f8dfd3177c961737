//! Products of rows of bytes with AVX2, or with AVX-VNNI.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m256i, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi32_ps,
    _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_srai_epi16, _mm256_srli_epi16,
    _mm256_storeu_si256,
};

use super::avx2::{Halves, Words, bytes, factors, load, values};
use super::avx512::prefetch_after;
use super::byte_codes::RowGroup;
use super::format::CodeWidth;
use super::instructions::{has_byte_vectors, has_short_vectors};
use super::panel::Panel;
use super::rows::ByteRows;
use super::{GROUP, PANEL, RUN, VECTOR};
use crate::isa::Isa;

/// Multiplies rows with a panel, if there are instructions for it.
pub(super) fn multiply(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &ByteRows,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) -> bool {
    if !has_short_vectors(isa) {
        return false;
    }
    let mut first = 0;
    while first < rows.rows() {
        // SAFETY: the processor has these instructions.
        unsafe {
            match (has_byte_vectors(isa), rows.rows() - first) {
                (true, 4..) => some_rows::<4, true>(panel, rows, &mut first, put),
                (true, 2..) => some_rows::<2, true>(panel, rows, &mut first, put),
                (true, _) => some_rows::<1, true>(panel, rows, &mut first, put),
                (false, 4..) => some_rows::<4, false>(panel, rows, &mut first, put),
                (false, 2..) => some_rows::<2, false>(panel, rows, &mut first, put),
                (false, _) => some_rows::<1, false>(panel, rows, &mut first, put),
            }
        }
    }
    true
}

/// Multiplies the next `R` rows with a panel. A row has the same result for every `R`.
///
/// # Safety
/// With `VNNI`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn some_rows<const R: usize, const VNNI: bool>(
    panel: &Panel<'_>,
    rows: &ByteRows,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    let groups = rows.some(*first).blocks();
    // SAFETY: the caller guarantees AVX-VNNI.
    let sums = unsafe {
        match (panel.format.width, panel.format.group) {
            (CodeWidth::Four, _) => {
                products::<R, { CodeWidth::Four.run_bytes() }, false, VNNI>(panel, groups)
            }
            (CodeWidth::Six, GROUP) => {
                products::<R, { CodeWidth::Six.run_bytes() }, false, VNNI>(panel, groups)
            }
            (CodeWidth::Six, _) => products::<R, { CodeWidth::Six.run_bytes() }, true, VNNI>(panel, groups),
            (CodeWidth::Eight, GROUP) => {
                products::<R, { CodeWidth::Eight.run_bytes() }, false, VNNI>(panel, groups)
            }
            (CodeWidth::Eight, _) => {
                products::<R, { CodeWidth::Eight.run_bytes() }, true, VNNI>(panel, groups)
            }
        }
    };
    for sums in sums {
        put(*first, &values(sums));
        *first += 1;
    }
}

/// The products of `R` rows with a panel whose runs have `BYTES` bytes. Its groups have a run (`HALVES`) or two.
///
/// # Safety
/// With `VNNI`, the processor has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn products<'a, const R: usize, const BYTES: usize, const HALVES: bool, const VNNI: bool>(
    panel: &Panel<'_>,
    rows: impl Iterator<Item = &'a [RowGroup; R]>,
) -> [Halves<__m256>; R] {
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    let (runs, _) = panel.codes.as_chunks::<BYTES>();
    for ((number, runs), rows) in runs.as_chunks::<{ GROUP / RUN }>().0.iter().enumerate().zip(rows) {
        let inputs = Inputs::of::<BYTES, VNNI>(rows);
        let mut dots = [[_mm256_setzero_si256(); 2]; R];
        let mut totals = [[_mm256_setzero_ps(); 2]; R];
        for (half, run) in runs.iter().enumerate() {
            prefetch_after(run);
            // SAFETY: the caller guarantees AVX-VNNI.
            unsafe { inputs.add_run::<BYTES, VNNI>(&mut dots, run, half * RUN / 4) };
            if HALVES {
                let group = 2 * number + half;
                let factors = [factors(panel, group, 0), factors(panel, group, 1)];
                for ((total, dots), row) in totals.iter_mut().zip(&mut dots).zip(rows) {
                    add_scaled(total, *dots, factors, row.half_sum(half));
                    *dots = [_mm256_setzero_si256(); 2];
                }
            }
        }
        if !HALVES {
            let factors = [factors(panel, number, 0), factors(panel, number, 1)];
            for ((total, dots), row) in totals.iter_mut().zip(dots).zip(rows) {
                add_scaled(total, dots, factors, row.sum);
            }
        }
        for ((sums, totals), row) in sums.iter_mut().zip(totals).zip(rows) {
            let scale = _mm256_set1_ps(row.scale);
            for (sum, total) in sums.iter_mut().zip(totals) {
                *sum = _mm256_fmadd_ps(total, scale, *sum);
            }
        }
    }
    sums
}

/// Adds the dot products of a group, times its scale, to a total. `sum` is that of the row's codes.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn add_scaled(totals: &mut Halves<__m256>, dots: Halves<__m256i>, factors: Halves<[__m256; 2]>, sum: f32) {
    let sum = _mm256_set1_ps(sum);
    for ((total, dots), [scale, minimum]) in totals.iter_mut().zip(dots).zip(factors) {
        let product = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scale, *total);
        *total = _mm256_fnmadd_ps(minimum, sum, product);
    }
}

/// The inputs of a group of `R` rows.
struct Inputs<'a, const R: usize> {
    rows: &'a [RowGroup; R],
    /// As integers of 16 bits, for codes whose products with bytes would overflow.
    words: [Words; R],
}

impl<'a, const R: usize> Inputs<'a, R> {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn of<const BYTES: usize, const VNNI: bool>(rows: &'a [RowGroup; R]) -> Inputs<'a, R> {
        let words = rows.each_ref().map(|row| {
            if VNNI || BYTES < CodeWidth::Eight.run_bytes() { Words::ZEROS } else { words(&row.codes) }
        });
        Inputs { rows, words }
    }

    /// Adds the products of a run of `BYTES` bytes with the words of each row from `first` on.
    ///
    /// # Safety
    /// With `VNNI`, the processor has AVX-VNNI.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn add_run<const BYTES: usize, const VNNI: bool>(
        &self,
        dots: &mut [Halves<__m256i>; R],
        run: &[u8; BYTES],
        first: usize,
    ) {
        if VNNI {
            for word in 0..RUN / 4 {
                let codes = codes(run, word);
                for (dots, row) in dots.iter_mut().zip(self.rows) {
                    let inputs = _mm256_set1_epi32(row.codes[first + word]);
                    for (dot, codes) in dots.iter_mut().zip(codes) {
                        // SAFETY: the caller guarantees the instruction.
                        unsafe { add_bytes(dot, codes, inputs) };
                    }
                }
            }
        } else if BYTES == CodeWidth::Eight.run_bytes() {
            for word in 0..RUN / 4 {
                let codes = codes(run, word).map(|codes| bytes(codes));
                for (dots, words) in dots.iter_mut().zip(&self.words) {
                    words.add(dots, codes, first + word);
                }
            }
        } else {
            self.add_pairs(dots, run, first);
        }
    }

    /// The same with codes of four or six bits, whose products are added in 16 bits first: four of 15 · 127 · 2, or two of
    /// 63 · 127 · 2, are below 2^15.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn add_pairs<const BYTES: usize>(
        &self,
        dots: &mut [Halves<__m256i>; R],
        run: &[u8; BYTES],
        first: usize,
    ) {
        let together = if BYTES == CodeWidth::Four.run_bytes() { 4 } else { 2 };
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for word in 0..RUN / 4 {
            let codes = codes(run, word);
            for ((sums, dots), row) in sums.iter_mut().zip(&mut *dots).zip(self.rows) {
                let inputs = _mm256_set1_epi32(row.codes[first + word]);
                for ((sum, dot), codes) in sums.iter_mut().zip(dots).zip(codes) {
                    let product = _mm256_maddubs_epi16(codes, inputs);
                    *sum = if word % together == 0 { product } else { _mm256_add_epi16(*sum, product) };
                    if (word + 1) % together == 0 {
                        *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(*sum, _mm256_set1_epi16(1)));
                    }
                }
            }
        }
    }
}

/// Adds the products of unsigned and signed bytes, four to a sum.
///
/// # Safety
/// The processor has AVX-VNNI.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn add_bytes(dot: &mut __m256i, codes: __m256i, inputs: __m256i) {
    // SAFETY: the caller guarantees the instruction, which touches registers alone.
    unsafe {
        asm!(
            "{{vex}} vpdpbusd {dot}, {codes}, {inputs}",
            dot = inout(ymm_reg) *dot,
            codes = in(ymm_reg) codes,
            inputs = in(ymm_reg) inputs,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Vector `word` of a run of `BYTES` bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn codes<const BYTES: usize>(run: &[u8; BYTES], word: usize) -> Halves<__m256i> {
    let (stored, _) = run.as_chunks::<VECTOR>();
    if BYTES == CodeWidth::Eight.run_bytes() {
        return load(&stored[word]);
    }
    let mask = _mm256_set1_epi8(0x0f);
    let nibbles = load(&stored[word / 2]);
    let low =
        if word.is_multiple_of(2) { nibbles } else { nibbles.map(|codes| _mm256_srli_epi16::<4>(codes)) };
    let low = low.map(|codes| _mm256_and_si256(codes, mask));
    if BYTES == CodeWidth::Four.run_bytes() {
        return low;
    }
    let upper = load(&stored[2]).map(|upper| match word {
        0 => _mm256_slli_epi16::<4>(upper),
        1 => _mm256_slli_epi16::<2>(upper),
        2 => upper,
        _ => _mm256_srli_epi16::<2>(upper),
    });
    let mask = _mm256_set1_epi8(0x30);
    [
        _mm256_or_si256(low[0], _mm256_and_si256(upper[0], mask)),
        _mm256_or_si256(low[1], _mm256_and_si256(upper[1], mask)),
    ]
}

/// The inputs of a group as integers of 16 bits.
#[target_feature(enable = "avx2")]
#[inline]
fn words(codes: &[i32; GROUP / 4]) -> Words {
    let mut words = Words::ZEROS;
    // SAFETY: eight words are one vector.
    unsafe {
        let codes = _mm256_loadu_si256(codes.as_ptr().cast());
        let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(codes));
        _mm256_storeu_si256(words.even.as_mut_ptr().cast(), even);
        _mm256_storeu_si256(words.odd.as_mut_ptr().cast(), _mm256_srai_epi16::<8>(codes));
    }
    words
}
