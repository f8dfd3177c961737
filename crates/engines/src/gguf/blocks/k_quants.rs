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

/// The 2-bit value `index`: 32 consecutive bytes hold 128 values, in four runs of 32.
fn two_bits(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 128 * 32 + index % 32] >> (2 * (index / 32 % 4)) & 3
}

/// The bit `index` of 32 bytes, whose bit `n` belongs to the run of 32 values `n`.
fn one_bit(bytes: &[u8], index: usize) -> u8 {
    bytes[index % 32] >> (index / 32) & 1
}

/// The nibble `index`: `run` consecutive bytes hold `2 * run` values, the low nibbles first.
fn nibble(bytes: &[u8], run: usize, index: usize) -> u8 {
    bytes[index / (2 * run) * run + index % run] >> (4 * (index / run % 2)) & 0x0f
}

pub(super) fn q2_k(block: &[u8], to: &mut QuantRow) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    to.scales.push(half(block, 80));
    to.minimums.push(half(block, 82));
    to.group_scales.extend(scales.iter().map(|both| (both & 0x0f).cast_signed()));
    to.group_minimums.extend(scales.iter().map(|both| both >> 4));
    to.codes.extend((0..LENGTH).map(|index| two_bits(quants, index)));
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
    to.codes.extend((0..LENGTH).map(|index| two_bits(quants, index) | one_bit(high, index) << 2));
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
    to.codes.extend((0..LENGTH).map(|index| nibble(&block[16..], 32, index)));
}

pub(super) fn q5_k(block: &[u8], to: &mut QuantRow) {
    let (high, low) = block[16..].split_at(32);
    push_eight_groups(block, to);
    to.codes.extend((0..LENGTH).map(|index| nibble(low, 32, index) | one_bit(high, index) << 4));
}

/// The code of zero of [`q6_k`].
pub(super) const Q6_ZERO: u8 = 32;

pub(super) fn q6_k(block: &[u8], to: &mut QuantRow) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    to.scales.push(half(block, 208));
    to.group_scales.extend(scales.iter().map(|scale| scale.cast_signed()));
    to.codes.extend((0..LENGTH).map(|index| nibble(low, 64, index) | two_bits(high, index) << 4));
}
