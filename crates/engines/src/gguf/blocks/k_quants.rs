//! K-quants: super-blocks of 256 values, whose groups have quantized scales of their own.

use super::scale::scale;

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

pub(super) fn q2_k(block: &[u8; Q2_K], values: &mut [f32; LENGTH]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, minimum) = (scale(block, 80), scale(block, 82));
    for (group, values) in values.chunks_exact_mut(16).enumerate() {
        let d = d * f32::from(scales[group] & 0x0f);
        let minimum = minimum * f32::from(scales[group] >> 4);
        for (at, value) in values.iter_mut().enumerate() {
            *value = d * f32::from(two_bits(quants, 16 * group + at)) - minimum;
        }
    }
}

pub(super) fn q3_k(block: &[u8; Q3_K], values: &mut [f32; LENGTH]) {
    let (high, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = scale(block, 108);
    for (group, values) in values.chunks_exact_mut(16).enumerate() {
        // The lower four bits of the scales are nibbles of 8 bytes, the upper two are in the last 4 bytes.
        let low = scales[group % 8] >> (4 * (group / 8)) & 0x0f;
        let upper = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
        let d = d * (f32::from(low | upper << 4) - 32.0);
        for (at, value) in values.iter_mut().enumerate() {
            let index = 16 * group + at;
            // A cleared third bit means minus four.
            let offset = if one_bit(high, index) == 0 { 4.0 } else { 0.0 };
            *value = d * (f32::from(two_bits(quants, index)) - offset);
        }
    }
}

/// The 6-bit scale and minimum of a group of 32 values.
fn scale_and_minimum(scales: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (scales[group] & 0x3f, scales[group + 4] & 0x3f)
    } else {
        // The lower four bits are nibbles, the upper two those that the first groups leave free.
        let low = scales[group + 4];
        (low & 0x0f | scales[group - 4] >> 6 << 4, low >> 4 | scales[group] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// Super-blocks of eight groups with scale and minimum, whose values `quant` unpacks.
fn eight_groups(block: &[u8], values: &mut [f32; LENGTH], quant: impl Fn(usize) -> u8) {
    let (d, minimum) = (scale(block, 0), scale(block, 2));
    for (group, values) in values.chunks_exact_mut(32).enumerate() {
        let (by, less) = scale_and_minimum(&block[4..16], group);
        let (d, minimum) = (d * by, minimum * less);
        for (at, value) in values.iter_mut().enumerate() {
            *value = d * f32::from(quant(32 * group + at)) - minimum;
        }
    }
}

pub(super) fn q4_k(block: &[u8; Q4_K], values: &mut [f32; LENGTH]) {
    eight_groups(block, values, |index| nibble(&block[16..], 32, index));
}

pub(super) fn q5_k(block: &[u8; Q5_K], values: &mut [f32; LENGTH]) {
    let (high, low) = block[16..].split_at(32);
    eight_groups(block, values, |index| nibble(low, 32, index) | one_bit(high, index) << 4);
}

pub(super) fn q6_k(block: &[u8; Q6_K], values: &mut [f32; LENGTH]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = scale(block, 208);
    for (group, values) in values.chunks_exact_mut(16).enumerate() {
        let d = d * f32::from(scales[group].cast_signed());
        for (at, value) in values.iter_mut().enumerate() {
            let index = 16 * group + at;
            let q = nibble(low, 64, index) | two_bits(high, index) << 4;
            *value = d * (f32::from(q) - 32.0);
        }
    }
}
