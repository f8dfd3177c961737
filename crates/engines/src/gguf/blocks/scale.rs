//! Scales of blocks, in half precision.

/// The bits of the scale at byte `at` of a block.
pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
