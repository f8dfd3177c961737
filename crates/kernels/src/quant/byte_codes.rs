//! Codes of activations in 8 bits.

use super::GROUP;
use crate::rows::{LANES, folded};

/// The largest code.
pub(super) const LARGEST_BYTE: f32 = 127.0;

/// The codes of 32 inputs of a row.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct RowGroup {
    /// Signed bytes, four inputs to a word.
    pub(super) codes: [i32; GROUP / 4],
    /// The sum of the codes of each half, two sums of 16 bits.
    pub(super) half_sums: i32,
    /// The sum of all codes.
    pub(super) sum: f32,
    /// The scale of the codes; NaN if a value is not finite.
    pub(super) scale: f32,
}

impl RowGroup {
    pub(super) const ZEROS: RowGroup = RowGroup { codes: [0; GROUP / 4], half_sums: 0, sum: 0.0, scale: 0.0 };

    /// The sum of the codes of a half.
    #[inline(always)]
    pub(super) fn half_sum(&self, half: usize) -> f32 {
        f32::from((self.half_sums >> (16 * half)) as i16)
    }

    /// Sets the sums of the codes of both halves.
    #[inline(always)]
    pub(super) fn set_sums(&mut self, [first, second]: [i16; 2]) {
        self.half_sums = pair(first, second);
        self.sum = f32::from(first + second);
    }
}

/// Two sums of 16 bits in a word.
#[inline(always)]
pub(super) fn pair(first: i16, second: i16) -> i32 {
    i32::from(second) << 16 | i32::from(first.cast_unsigned())
}

/// Quantizes the values of a group.
#[inline(always)]
pub(super) fn quantize(values: &[f32; GROUP], to: &mut RowGroup) {
    let mut tops = [0.0_f32; LANES];
    let mut finite = true;
    for values in values.as_chunks::<LANES>().0 {
        for (top, x) in tops.iter_mut().zip(values) {
            *top = top.max(x.abs());
            finite &= x.is_finite();
        }
    }
    let scale = folded(tops, f32::max) / LARGEST_BYTE;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let codes = values.map(|x| (x * inverse).round_ties_even().clamp(-LARGEST_BYTE, LARGEST_BYTE) as i8);
    for (to, codes) in to.codes.iter_mut().zip(codes.as_chunks::<4>().0) {
        *to = i32::from_le_bytes(codes.map(i8::cast_unsigned));
    }
    let sum = |codes: &[i8]| codes.iter().map(|code| i16::from(*code)).sum::<i16>();
    to.set_sums([sum(&codes[..GROUP / 2]), sum(&codes[GROUP / 2..])]);
    to.scale = if finite { scale } else { f32::NAN };
}
