//! Legacy quants: blocks of 32 values with one scale, and a minimum in the `_1` formats.

use sconce_kernels::quant::{CodeWidth, QuantFormat, QuantRow};

use super::scale::half;

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

/// Blocks of codes, whose zero is `zero`.
pub(super) const fn symmetric(width: CodeWidth, zero: u8) -> QuantFormat {
    QuantFormat { width, group: LENGTH, groups: 1, zero, has_minimums: false }
}

/// Blocks of codes with a minimum.
pub(super) const fn with_minimum(width: CodeWidth) -> QuantFormat {
    QuantFormat { width, group: LENGTH, groups: 1, zero: 0, has_minimums: true }
}

/// The codes of nibbles: the low nibbles are the first half of the block.
pub(super) fn nibbles(bytes: &[u8]) -> [u8; LENGTH] {
    let mut codes = [0; LENGTH];
    for (index, byte) in bytes[..HALF].iter().enumerate() {
        codes[index] = byte & 0x0f;
        codes[index + HALF] = byte >> 4;
    }
    codes
}

/// Codes of five bits: bit `index` of the first four bytes is the highest bit of a code.
fn five_bits(bytes: &[u8]) -> [u8; LENGTH] {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut codes = nibbles(&bytes[4..]);
    for (index, code) in codes.iter_mut().enumerate() {
        *code |= ((high >> index & 1) as u8) << 4;
    }
    codes
}

/// The minimum is added in the file, and subtracted in a [`QuantRow`].
fn push_minimum(block: &[u8], to: &mut QuantRow) {
    const SIGN: u16 = 0x8000;
    to.minimums.push(half(block, 2) ^ SIGN);
}

pub(super) fn q4_0(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    to.codes.extend(nibbles(&block[2..]));
}

pub(super) fn q4_1(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    push_minimum(block, to);
    to.codes.extend(nibbles(&block[4..]));
}

pub(super) fn q5_0(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    to.codes.extend(five_bits(&block[2..]));
}

pub(super) fn q5_1(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    push_minimum(block, to);
    to.codes.extend(five_bits(&block[4..]));
}

/// The code of zero where signed values are stored as unsigned codes.
pub(super) const SIGNED: u8 = 128;

pub(super) fn q8_0(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    to.codes.extend(block[2..].iter().map(|byte| byte ^ SIGNED));
}
