//! Products of rows of bytes with the dot products of NEON.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8,
    veorq_u8, vfmaq_f32, vfmsq_f32, vld1q_s8,
};
use std::arch::asm;

use super::byte_codes::RowGroup;
use super::format::CodeWidth;
use super::neon::{LANES, factors, values, vector};
use super::panel::Panel;
use super::rows::ByteRows;
use super::{GROUP, PANEL, RUN};
use crate::detect::has_dot_products;

/// Vectors of a panel's columns.
type Columns<T> = [T; PANEL / LANES];

/// Multiplies rows with a panel, if there are instructions for it.
pub(super) fn multiply(
    panel: &Panel<'_>,
    rows: &ByteRows,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) -> bool {
    if !has_dot_products() {
        return false;
    }
    let mut first = 0;
    while first < rows.rows() {
        // SAFETY: the processor has these instructions.
        unsafe {
            match rows.rows() - first {
                4.. => some_rows::<4>(panel, rows, &mut first, put),
                2.. => some_rows::<2>(panel, rows, &mut first, put),
                _ => some_rows::<1>(panel, rows, &mut first, put),
            }
        }
    }
    true
}

/// Multiplies the next `R` rows with a panel. A row has the same result for every `R`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn some_rows<const R: usize>(
    panel: &Panel<'_>,
    rows: &ByteRows,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    let groups = rows.some(*first).blocks();
    let sums = match panel.format.width {
        CodeWidth::Four => products::<R, { CodeWidth::Four.run_bytes() }>(panel, groups),
        CodeWidth::Six => products::<R, { CodeWidth::Six.run_bytes() }>(panel, groups),
        CodeWidth::Eight => products::<R, { CodeWidth::Eight.run_bytes() }>(panel, groups),
    };
    for sums in sums {
        put(*first, &values(sums));
        *first += 1;
    }
}

/// The products of `R` rows with a panel whose runs have `BYTES` bytes.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn products<'a, const R: usize, const BYTES: usize>(
    panel: &Panel<'_>,
    rows: impl Iterator<Item = &'a [RowGroup; R]>,
) -> [Columns<float32x4_t>; R] {
    let mut sums = [[vdupq_n_f32(0.0); PANEL / LANES]; R];
    let (runs, _) = panel.codes.as_chunks::<BYTES>();
    for ((number, runs), rows) in runs.as_chunks::<{ GROUP / RUN }>().0.iter().enumerate().zip(rows) {
        let mut totals = [[vdupq_n_f32(0.0); PANEL / LANES]; R];
        if panel.format.group == GROUP {
            let mut dots = rows.each_ref().map(|row| start::<BYTES>(row.sum));
            add_run(&mut dots, &runs[0], rows, 0);
            add_run(&mut dots, &runs[1], rows, 1);
            add_scaled(&mut totals, dots, panel, number, rows.each_ref().map(|row| row.sum));
        } else {
            for (half, run) in runs.iter().enumerate() {
                let codes = rows.each_ref().map(|row| row.half_sum(half));
                let mut dots = codes.map(|sum| start::<BYTES>(sum));
                add_run(&mut dots, run, rows, half);
                add_scaled(&mut totals, dots, panel, 2 * number + half, codes);
            }
        }
        for ((sums, totals), row) in sums.iter_mut().zip(totals).zip(rows) {
            let scale = vdupq_n_f32(row.scale);
            for (sum, total) in sums.iter_mut().zip(totals) {
                *sum = vfmaq_f32(*sum, total, scale);
            }
        }
    }
    sums
}

/// Dot products before the first is added. Codes of eight bits are multiplied less 128; `sum` is that of the row's codes.
#[target_feature(enable = "neon")]
#[inline]
fn start<const BYTES: usize>(sum: f32) -> Columns<int32x4_t> {
    let skipped = if BYTES == CodeWidth::Eight.run_bytes() { 128 * sum as i32 } else { 0 };
    [vdupq_n_s32(skipped); PANEL / LANES]
}

/// Adds the dot products of a group, times its scale, to the totals of each row. `sums` are those of the rows' codes.
#[target_feature(enable = "neon")]
#[inline]
fn add_scaled<const R: usize>(
    totals: &mut [Columns<float32x4_t>; R],
    dots: [Columns<int32x4_t>; R],
    panel: &Panel<'_>,
    group: usize,
    sums: [f32; R],
) {
    for place in 0..PANEL / LANES {
        let [scale, minimum] = factors(panel, group, place);
        for ((totals, dots), sum) in totals.iter_mut().zip(&dots).zip(sums) {
            let product = vfmaq_f32(totals[place], vcvtq_f32_s32(dots[place]), scale);
            totals[place] = vfmsq_f32(product, minimum, vdupq_n_f32(sum));
        }
    }
}

/// Adds the products of a run of `BYTES` bytes with one half of each row's group.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_run<const R: usize, const BYTES: usize>(
    dots: &mut [Columns<int32x4_t>; R],
    run: &[u8; BYTES],
    rows: &[RowGroup; R],
    half: usize,
) {
    // SAFETY: four words are one vector.
    let inputs =
        rows.each_ref().map(|row| unsafe { vld1q_s8(row.codes[half * RUN / 4..][..4].as_ptr().cast()) });
    add_word::<R, BYTES, 0>(dots, run, inputs);
    add_word::<R, BYTES, 1>(dots, run, inputs);
    add_word::<R, BYTES, 2>(dots, run, inputs);
    add_word::<R, BYTES, 3>(dots, run, inputs);
}

/// Adds the products of vector `WORD` of a run with four inputs of each row.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add_word<const R: usize, const BYTES: usize, const WORD: usize>(
    dots: &mut [Columns<int32x4_t>; R],
    run: &[u8; BYTES],
    inputs: [int8x16_t; R],
) {
    let width = const {
        if BYTES == CodeWidth::Four.run_bytes() {
            CodeWidth::Four
        } else if BYTES == CodeWidth::Six.run_bytes() {
            CodeWidth::Six
        } else {
            CodeWidth::Eight
        }
    };
    let ([first, second], [third, fourth]) = (vector(width, run, WORD, 0), vector(width, run, WORD, 1));
    for (place, mut codes) in [first, second, third, fourth].into_iter().enumerate() {
        if width == CodeWidth::Eight {
            codes = veorq_u8(codes, vdupq_n_u8(0x80));
        }
        for (dots, inputs) in dots.iter_mut().zip(inputs) {
            add::<WORD>(&mut dots[place], codes, inputs);
        }
    }
}

/// Adds the products of signed bytes with four inputs, four to a sum.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn add<const WORD: usize>(dots: &mut int32x4_t, codes: uint8x16_t, inputs: int8x16_t) {
    // SAFETY: the instruction touches registers alone.
    unsafe {
        asm!(
            "sdot {dots:v}.4s, {codes:v}.16b, {inputs:v}.4b[{word}]",
            dots = inout(vreg) *dots,
            codes = in(vreg) codes,
            inputs = in(vreg) inputs,
            word = const WORD,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}
