//! Codes of activations.

use super::GROUP;
use crate::rows::{LANES, folded};

/// The largest code: its high byte is 127 and its low byte 0.
pub(super) const LARGEST: f32 = 127.0 * 256.0;
/// Inputs per sum: the smallest group of a format.
const SUMMED: usize = 16;
/// Words of a group.
const WORDS: usize = GROUP / 4;

/// The codes of a row's group, four inputs to a word: a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Codes {
    pub(super) high: [i32; WORDS],
    pub(super) low: [i32; WORDS],
}

/// Quantizes a group. Returns its scale and the sums of both halves.
#[inline(always)]
pub(super) fn quantize(values: &[f32; GROUP], to: &mut Codes) -> (f32, [f32; 2]) {
    let mut tops = [0.0_f32; LANES];
    let mut finite = true;
    for values in values.as_chunks::<LANES>().0 {
        for (top, x) in tops.iter_mut().zip(values) {
            *top = top.max(x.abs());
            finite &= x.is_finite();
        }
    }
    let scale = folded(tops, f32::max) / LARGEST;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let codes = values.map(|x| (x * inverse).round_ties_even().clamp(-LARGEST, LARGEST) as i32);
    // The low byte is signed, so the high byte is the nearest.
    let (high, low) = (codes.map(|code| ((code + 128) >> 8) as u8), codes.map(|code| code as u8));
    for (to, bytes) in [(&mut to.high, &high), (&mut to.low, &low)] {
        for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *to = i32::from_le_bytes(*bytes);
        }
    }
    let mut halves = [0.0; 2];
    for (sum, codes) in halves.iter_mut().zip(codes.as_chunks::<SUMMED>().0) {
        *sum = codes.iter().sum::<i32>() as f32;
    }
    (if finite { scale } else { f32::NAN }, halves)
}
