//! I-quants: blocks whose 4-bit values are indices of 16 uneven levels.

use super::scale::scale;
use super::{k_quants, legacy};

/// Bytes of a block: scale, nibbles.
pub(super) const IQ4_NL: usize = 2 + legacy::LENGTH / 2;
/// Bytes of a super-block: scale, upper bits of its eight scales, their lower bits, nibbles.
pub(super) const IQ4_XS: usize = 2 + 2 + k_quants::LENGTH / 64 + k_quants::LENGTH / 2;

/// The levels.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn level(index: u8) -> f32 {
    f32::from(LEVELS[usize::from(index)])
}

/// 32 values of 16 bytes: the low nibbles are the first half.
fn levels(bytes: &[u8], d: f32, values: &mut [f32]) {
    let (low, high) = values.split_at_mut(16);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = d * level(byte & 0x0f);
        *high = d * level(byte >> 4);
    }
}

pub(super) fn iq4_nl(block: &[u8; IQ4_NL], values: &mut [f32; legacy::LENGTH]) {
    levels(&block[2..], scale(block, 0), values);
}

pub(super) fn iq4_xs(block: &[u8; IQ4_XS], values: &mut [f32; k_quants::LENGTH]) {
    let d = scale(block, 0);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    for (group, (bytes, values)) in block[8..].chunks_exact(16).zip(values.chunks_exact_mut(32)).enumerate() {
        let lower = block[4 + group / 2] >> (4 * (group % 2)) & 0x0f;
        let six = u16::from(lower) | (upper >> (2 * group) & 3) << 4;
        levels(bytes, d * (f32::from(six) - 32.0), values);
    }
}
