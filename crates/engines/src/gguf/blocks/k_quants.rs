//! K-quants: super-blocks of 256 values, whose groups have quantized scales of their own.

use sconce_kernels::quant::{CodeWidth, QuantFormat, QuantRow};

use super::scale::half;

/// Values in a super-block.
pub(super) const LENGTH: usize = 256;

/// Bytes of a super-block: scales and minima of 16 groups, 2-bit values, scale of scales, scale of minima.
pub(super) const Q2_K: usize = LENGTH / 16 + LENGTH / 4 + 2 + 2;
/// Bytes of a super-block: third bits, 2-bit values, 6-bit scales of 16 groups, scale of scales.
pub(super) const Q3_K: usize = LENGTH / 8 + LENGTH / 4 + 12 + 2;
/// Bytes of a super-block: scale of scales, scale of minima, 6-bit scales and minima of 8 groups, nibbles.
pub(super) const Q4_K: usize = 2 + 2 + 12 + LENGTH / 2;
/// Bytes of a super-block: as of [`Q4_K`], with the fifth bits before the nibbles.
pub(super) const Q5_K: usize = 2 + 2 + 12 + LENGTH / 8 + LENGTH / 2;
/// Bytes of a super-block: nibbles, upper two bits, scales of 16 groups, scale of scales.
pub(super) const Q6_K: usize = LENGTH / 2 + LENGTH / 4 + LENGTH / 16 + 2;

/// Super-blocks of 16 groups, whose codes have the zero `zero`.
pub(super) const fn sixteen_groups(zero: u8) -> QuantFormat {
    QuantFormat { width: CodeWidth::Six, group: 16, groups: 16, zero, has_minimums: false }
}

/// Super-blocks of 16 groups with minimums.
pub(super) const SIXTEEN_WITH_MINIMUMS: QuantFormat =
    QuantFormat { width: CodeWidth::Six, group: 16, groups: 16, zero: 0, has_minimums: true };

/// Super-blocks of 8 groups with minimums.
pub(super) const fn eight_with_minimums(width: CodeWidth) -> QuantFormat {
    QuantFormat { width, group: 32, groups: 8, zero: 0, has_minimums: true }
}

/// Appends zeros for the codes of a super-block.
fn next_codes(to: &mut QuantRow) -> &mut [u8] {
    let start = to.codes.len();
    to.codes.resize(start + LENGTH, 0);
    &mut to.codes[start..]
}

/// Adds 2-bit values from bit `at` of the codes on: 32 consecutive bytes hold 128 values, in four runs of 32.
fn add_two_bits(codes: &mut [u8], bytes: &[u8], at: u32) {
    for (codes, bytes) in codes.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (run, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, bits)| *code |= (bits >> (2 * run) & 3) << at);
        }
    }
}

/// Adds bit `at` of the codes: bit `n` of 32 bytes belongs to the run of 32 values `n`.
fn add_one_bit(codes: &mut [u8], bytes: &[u8], at: u32) {
    for (run, codes) in codes.chunks_exact_mut(32).enumerate() {
        codes.iter_mut().zip(bytes).for_each(|(code, bits)| *code |= (bits >> run & 1) << at);
    }
}

/// Adds nibbles: `run` consecutive bytes hold `2 * run` values, the low nibbles first.
fn add_nibbles(codes: &mut [u8], bytes: &[u8], run: usize) {
    for (codes, bytes) in codes.chunks_exact_mut(2 * run).zip(bytes.chunks_exact(run)) {
        let (low, high) = codes.split_at_mut(run);
        low.iter_mut().zip(bytes).for_each(|(code, both)| *code |= both & 0x0f);
        high.iter_mut().zip(bytes).for_each(|(code, both)| *code |= both >> 4);
    }
}

pub(super) fn q2_k(block: &[u8], to: &mut QuantRow) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    to.scales.push(half(block, 80));
    to.minimums.push(half(block, 82));
    to.group_scales.extend(scales.iter().map(|both| (both & 0x0f).cast_signed()));
    to.group_minimums.extend(scales.iter().map(|both| both >> 4));
    add_two_bits(next_codes(to), quants, 0);
}

/// The code of zero of [`q3_k`]: a cleared third bit means minus four.
pub(super) const Q3_ZERO: u8 = 4;

pub(super) fn q3_k(block: &[u8], to: &mut QuantRow) {
    let (high, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    to.scales.push(half(block, 108));
    to.group_scales.extend((0..16).map(|group| {
        // The lower four bits of the scales are nibbles of 8 bytes, the upper two are in the last 4 bytes.
        let low = scales[group % 8] >> (4 * (group / 8)) & 0x0f;
        let upper = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
        (low | upper << 4).cast_signed() - 32
    }));
    let codes = next_codes(to);
    add_two_bits(codes, quants, 0);
    add_one_bit(codes, high, 2);
}

/// The 6-bit scale and minimum of a group of 32 values.
fn scale_and_minimum(scales: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        (scales[group] & 0x3f, scales[group + 4] & 0x3f)
    } else {
        // The lower four bits are nibbles, the upper two those that the first groups leave free.
        let low = scales[group + 4];
        (low & 0x0f | scales[group - 4] >> 6 << 4, low >> 4 | scales[group] >> 6 << 4)
    }
}

/// The scales of super-blocks of eight groups.
fn push_eight_groups(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    to.minimums.push(half(block, 2));
    for group in 0..8 {
        let (scale, minimum) = scale_and_minimum(&block[4..16], group);
        to.group_scales.push(scale.cast_signed());
        to.group_minimums.push(minimum);
    }
}

pub(super) fn q4_k(block: &[u8], to: &mut QuantRow) {
    push_eight_groups(block, to);
    add_nibbles(next_codes(to), &block[16..], 32);
}

pub(super) fn q5_k(block: &[u8], to: &mut QuantRow) {
    let (high, low) = block[16..].split_at(32);
    push_eight_groups(block, to);
    let codes = next_codes(to);
    add_nibbles(codes, low, 32);
    add_one_bit(codes, high, 4);
}

/// The code of zero of [`q6_k`].
pub(super) const Q6_ZERO: u8 = 32;

pub(super) fn q6_k(block: &[u8], to: &mut QuantRow) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    to.scales.push(half(block, 208));
    to.group_scales.extend(scales.iter().map(|scale| scale.cast_signed()));
    let codes = next_codes(to);
    add_nibbles(codes, low, 64);
    add_two_bits(codes, high, 4);
}
