//! I-quants: blocks whose 4-bit values are indices of 16 uneven levels.

use sconce_kernels::quant::{CodeWidth, QuantFormat, QuantRow};

use super::scale::half;
use super::{k_quants, legacy};

/// Bytes of a block: scale, nibbles.
pub(super) const IQ4_NL: usize = 2 + legacy::LENGTH / 2;
/// Bytes of a super-block: scale, upper bits of its eight scales, their lower bits, nibbles.
pub(super) const IQ4_XS: usize = 2 + 2 + k_quants::LENGTH / 64 + k_quants::LENGTH / 2;

/// Super-blocks of eight groups of levels.
pub(super) const EIGHT_GROUPS: QuantFormat =
    QuantFormat { width: CodeWidth::Eight, group: 32, groups: 8, zero: legacy::SIGNED, has_minimums: false };

/// The levels.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn push_levels(bytes: &[u8], to: &mut QuantRow) {
    let level = |index: u8| LEVELS[usize::from(index)].cast_unsigned() ^ legacy::SIGNED;
    to.codes.extend(legacy::nibbles(bytes).map(level));
}

pub(super) fn iq4_nl(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    push_levels(&block[2..], to);
}

pub(super) fn iq4_xs(block: &[u8], to: &mut QuantRow) {
    to.scales.push(half(block, 0));
    let upper = u16::from_le_bytes([block[2], block[3]]);
    for (group, bytes) in block[8..].chunks_exact(16).enumerate() {
        let lower = block[4 + group / 2] >> (4 * (group % 2)) & 0x0f;
        let six = lower | ((upper >> (2 * group) & 3) as u8) << 4;
        to.group_scales.push(six.cast_signed() - 32);
        push_levels(bytes, to);
    }
}
