//! Codes of activations.

use super::byte_codes::{LARGEST_BYTE, pair};
use super::{BLOCK, GROUP};
use crate::rows::{LANES, folded};

/// The largest code: its high byte is 127 and its low byte 0.
pub(super) const LARGEST: f32 = 127.0 * 256.0;
/// Inputs of the smallest group of a format.
const SUMMED: usize = 16;
/// Words of a block.
const WORDS: usize = BLOCK / 4;

/// A block of a row: the codes of 256 inputs with one scale. A code is `256 · high + low`, two signed bytes, for dot products
/// of bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct RowBlock {
    /// High bytes, four inputs to a word.
    pub(super) high: [i32; WORDS],
    /// Low bytes, four inputs to a word.
    pub(super) low: [i32; WORDS],
    /// The sum of each 16 codes.
    pub(super) half_sums: [f32; BLOCK / SUMMED],
    /// The sum of each 32 codes.
    pub(super) sums: [f32; BLOCK / GROUP],
    /// The scale of the codes; NaN if a value is not finite.
    pub(super) scale: f32,
}

impl RowBlock {
    pub(super) const ZEROS: RowBlock = RowBlock {
        high: [0; WORDS],
        low: [0; WORDS],
        half_sums: [0.0; BLOCK / SUMMED],
        sums: [0.0; BLOCK / GROUP],
        scale: 0.0,
    };

    /// High and low bytes of the 32 inputs of a group.
    #[inline(always)]
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "no vectors")
    )]
    pub(super) fn group(&self, group: usize) -> [&[i32; GROUP / 4]; 2] {
        [&self.high, &self.low].map(|words| &words.as_chunks().0[group])
    }

    /// The sum of the codes of a group of 16 or 32 inputs.
    #[inline(always)]
    pub(super) fn sum(&self, inputs: usize, group: usize) -> f32 {
        if inputs == GROUP { self.sums[group] } else { self.half_sums[group] }
    }

    /// Sets the sum of each 16 codes of group `group`.
    #[inline(always)]
    pub(super) fn set_sums(&mut self, group: usize, halves: [f32; 2]) {
        self.half_sums[2 * group..][..2].copy_from_slice(&halves);
        self.sums[group] = halves[0] + halves[1];
    }
}

/// A block of a row: the codes of 256 inputs with one scale, signed bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct ByteBlock {
    /// The codes, four inputs to a word.
    pub(super) codes: [i32; WORDS],
    /// The sum of each 16 codes, two sums of 16 bits to a word.
    pub(super) half_sums: [i32; BLOCK / SUMMED / 2],
    /// The sum of each 32 codes, two sums to a word.
    pub(super) sums: [i32; BLOCK / GROUP / 2],
    /// The scale of the codes; NaN if a value is not finite.
    pub(super) scale: f32,
}

impl ByteBlock {
    pub(super) const ZEROS: ByteBlock = ByteBlock {
        codes: [0; WORDS],
        half_sums: [0; BLOCK / SUMMED / 2],
        sums: [0; BLOCK / GROUP / 2],
        scale: 0.0,
    };

    /// Sets the sum of each 16 codes.
    #[inline(always)]
    pub(super) fn set_sums(&mut self, sums: [i16; BLOCK / SUMMED]) {
        for (to, sums) in self.half_sums.iter_mut().zip(sums.as_chunks::<2>().0) {
            *to = pair(sums[0], sums[1]);
        }
        for (to, sums) in self.sums.iter_mut().zip(sums.as_chunks::<4>().0) {
            *to = pair(sums[0] + sums[1], sums[2] + sums[3]);
        }
    }
}

/// The scale of the values of a block with codes up to `largest`, and its inverse. The scale is NaN if a value is not finite.
#[inline(always)]
fn scale_of(values: &[f32], largest: f32) -> (f32, f32) {
    let mut tops = [0.0_f32; LANES];
    let mut finite = true;
    for values in values.as_chunks::<LANES>().0 {
        for (top, x) in tops.iter_mut().zip(values) {
            *top = top.max(x.abs());
            finite &= x.is_finite();
        }
    }
    let scale = folded(tops, f32::max) / largest;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    (if finite { scale } else { f32::NAN }, inverse)
}

/// Quantizes the values of a block to bytes.
#[inline(always)]
pub(super) fn quantize_bytes(values: &[f32], to: &mut ByteBlock) {
    let (scale, inverse) = scale_of(values, LARGEST_BYTE);
    to.scale = scale;
    let mut sums = [0; BLOCK / SUMMED];
    for ((values, to), sum) in
        values.as_chunks::<SUMMED>().0.iter().zip(to.codes.as_chunks_mut::<4>().0).zip(&mut sums)
    {
        let codes = values.map(|x| (x * inverse).round_ties_even().clamp(-LARGEST_BYTE, LARGEST_BYTE) as i8);
        for (to, codes) in to.iter_mut().zip(codes.as_chunks::<4>().0) {
            *to = i32::from_le_bytes(codes.map(i8::cast_unsigned));
        }
        *sum = codes.iter().map(|code| i16::from(*code)).sum::<i16>();
    }
    to.set_sums(sums);
}

/// Quantizes the values of a block: 256, or fewer at the end of a row.
#[inline(always)]
pub(super) fn quantize(values: &[f32], to: &mut RowBlock) {
    let (scale, inverse) = scale_of(values, LARGEST);
    to.scale = scale;
    for (group, values) in values.as_chunks::<GROUP>().0.iter().enumerate() {
        let codes = values.map(|x| (x * inverse).round_ties_even().clamp(-LARGEST, LARGEST) as i32);
        // The low byte is signed, so the high byte is the nearest.
        let (high, low) = (codes.map(|code| ((code + 128) >> 8) as u8), codes.map(|code| code as u8));
        for (to, bytes) in [(&mut to.high, &high), (&mut to.low, &low)] {
            let to = &mut to[group * GROUP / 4..][..GROUP / 4];
            for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *to = i32::from_le_bytes(*bytes);
            }
        }
        let sum = |codes: &[i32]| codes.iter().sum::<i32>() as f32;
        to.set_sums(group, [sum(&codes[..SUMMED]), sum(&codes[SUMMED..])]);
    }
}
