//! Legacy quants: blocks of 32 values with one scale, and a minimum in the `_1` formats.

use super::scale::scale;

/// Values in a block.
pub(super) const LENGTH: usize = 32;
const HALF: usize = LENGTH / 2;

/// Bytes of a block: scale, nibbles.
pub(super) const Q4_0: usize = 2 + HALF;
/// Bytes of a block: scale, minimum, nibbles.
pub(super) const Q4_1: usize = 2 + 2 + HALF;
/// Bytes of a block: scale, fifth bits, nibbles.
pub(super) const Q5_0: usize = 2 + 4 + HALF;
/// Bytes of a block: scale, minimum, fifth bits, nibbles.
pub(super) const Q5_1: usize = 2 + 2 + 4 + HALF;
/// Bytes of a block: scale, signed bytes.
pub(super) const Q8_0: usize = 2 + LENGTH;

/// Calls `put` with each index and its 4-bit value: the low nibbles are the first half of the block.
fn nibbles(bytes: &[u8], mut put: impl FnMut(usize, u8)) {
    for (index, byte) in bytes[..HALF].iter().enumerate() {
        put(index, byte & 0x0f);
        put(index + HALF, byte >> 4);
    }
}

/// Calls `put` with each index and its 5-bit value: bit `index` of the first four bytes is its highest bit.
fn five_bits(bytes: &[u8], mut put: impl FnMut(usize, u8)) {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    nibbles(&bytes[4..], |index, low| put(index, low | ((high >> index & 1) as u8) << 4));
}

pub(super) fn q4_0(block: &[u8; Q4_0], values: &mut [f32; LENGTH]) {
    let d = scale(block, 0);
    nibbles(&block[2..], |index, q| values[index] = d * (f32::from(q) - 8.0));
}

pub(super) fn q4_1(block: &[u8; Q4_1], values: &mut [f32; LENGTH]) {
    let (d, minimum) = (scale(block, 0), scale(block, 2));
    nibbles(&block[4..], |index, q| values[index] = d * f32::from(q) + minimum);
}

pub(super) fn q5_0(block: &[u8; Q5_0], values: &mut [f32; LENGTH]) {
    let d = scale(block, 0);
    five_bits(&block[2..], |index, q| values[index] = d * (f32::from(q) - 16.0));
}

pub(super) fn q5_1(block: &[u8; Q5_1], values: &mut [f32; LENGTH]) {
    let (d, minimum) = (scale(block, 0), scale(block, 2));
    five_bits(&block[4..], |index, q| values[index] = d * f32::from(q) + minimum);
}

pub(super) fn q8_0(block: &[u8; Q8_0], values: &mut [f32; LENGTH]) {
    let d = scale(block, 0);
    for (value, q) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(q.cast_signed()) * d;
    }
}
