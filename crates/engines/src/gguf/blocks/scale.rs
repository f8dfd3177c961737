//! Scales of blocks, in half precision.

use half::f16;

/// The scale at byte `at` of a block.
pub(super) fn scale(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
