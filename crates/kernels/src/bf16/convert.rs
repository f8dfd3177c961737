//! Conversion between f32 and bf16, the upper half of an f32.

/// Rounds to the nearest bf16, ties to even; NaN stays NaN.
pub fn narrow(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Converts bf16 to f32.
#[inline(always)]
pub fn widen(from: &[u16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = f32::from_bits(u32::from(*from) << 16);
    }
}
