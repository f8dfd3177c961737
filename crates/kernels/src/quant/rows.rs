//! Rows of activations, quantized to 16 bits.

use super::GROUP;
use crate::isa::{Isa, Vectorized};

/// The largest code: its high byte is 127 and its low byte 0.
const LARGEST: f32 = 127.0 * 256.0;
/// Inputs per sum: the smallest group of a format.
const SUMMED: usize = 16;
/// Words of a group.
const WORDS: usize = GROUP / 4;

/// Rows of activations, quantized to 16 bits. Each group of 32 inputs has a scale. A code is `256 · high + low`, two signed
/// bytes, for dot products of bytes.
#[derive(Clone, Debug, Default)]
pub struct QuantizedRows {
    rows: usize,
    inputs: usize,
    /// High and low bytes of four codes.
    words: Vec<[i32; 2]>,
    /// A scale per group.
    scales: Vec<f32>,
    /// The sum of each 16 codes.
    sums: Vec<f32>,
}

impl QuantizedRows {
    /// Quantizes `rows` rows of `inputs` values that are `stride` apart. A group with a value that is not finite has the
    /// scale NaN, and so do its products. `inputs` is a multiple of 32.
    pub fn quantize(isa: Isa, values: &[f32], stride: usize, rows: usize, inputs: usize) -> QuantizedRows {
        assert!(inputs.is_multiple_of(GROUP), "{inputs} inputs are no whole groups");
        let mut quantized = QuantizedRows {
            rows,
            inputs,
            words: vec![[0; 2]; rows * inputs / 4],
            scales: vec![0.0; rows * inputs / GROUP],
            sums: vec![0.0; rows * inputs / SUMMED],
        };
        isa.run(Quantize { values, stride, to: &mut quantized });
        quantized
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// One row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> QuantizedRow<'_> {
        let part = |per: usize| row * self.inputs / per..(row + 1) * self.inputs / per;
        QuantizedRow {
            words: &self.words[part(4)],
            scales: &self.scales[part(GROUP)],
            sums: &self.sums[part(SUMMED)],
        }
    }
}

/// One quantized row.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRow<'a> {
    /// High and low bytes of four codes.
    pub(super) words: &'a [[i32; 2]],
    scales: &'a [f32],
    sums: &'a [f32],
}

impl QuantizedRow<'_> {
    /// The sum of the codes of a group of `size` inputs.
    #[inline(always)]
    pub(super) fn sum(&self, group: usize, size: usize) -> f32 {
        if size == SUMMED { self.sums[group] } else { self.sums[2 * group] + self.sums[2 * group + 1] }
    }

    /// The scale of the inputs of a group of `size` inputs.
    #[inline(always)]
    pub(super) fn scale(&self, group: usize, size: usize) -> f32 {
        self.scales[group * size / GROUP]
    }
}

struct Quantize<'a> {
    values: &'a [f32],
    stride: usize,
    to: &'a mut QuantizedRows,
}

impl Vectorized for Quantize<'_> {
    #[inline(always)]
    fn run(self) {
        let Quantize { values, stride, to: QuantizedRows { rows, inputs, words, scales, sums } } = self;
        let groups = *inputs / GROUP;
        let (words, _) = words.as_chunks_mut::<WORDS>();
        let (sums, _) = sums.as_chunks_mut::<2>();
        let mut to = scales.iter_mut().zip(words).zip(sums);
        for row in 0..*rows {
            let (values, _) = values[row * stride..][..*inputs].as_chunks::<GROUP>();
            for (values, ((scale, words), sums)) in values.iter().zip(to.by_ref().take(groups)) {
                *scale = quantize(values, words, sums);
            }
        }
    }
}

/// Quantizes a group and returns its scale.
#[inline(always)]
fn quantize(values: &[f32; GROUP], words: &mut [[i32; 2]; WORDS], sums: &mut [f32; 2]) -> f32 {
    let mut largest = 0.0_f32;
    let mut finite = true;
    for x in values {
        largest = largest.max(x.abs());
        finite &= x.is_finite();
    }
    let scale = largest / LARGEST;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut codes = [0_i32; GROUP];
    for (code, x) in codes.iter_mut().zip(values) {
        *code = (x * inverse).round_ties_even().clamp(-LARGEST, LARGEST) as i32;
    }
    for (words, codes) in words.iter_mut().zip(codes.as_chunks::<4>().0) {
        // The low byte is signed, so the high byte is the nearest.
        let high = codes.map(|code| ((code + 128) >> 8) as u8);
        *words = [i32::from_le_bytes(high), i32::from_le_bytes(codes.map(|code| code as u8))];
    }
    for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<SUMMED>().0) {
        *sum = codes.iter().sum::<i32>() as f32;
    }
    if finite { scale } else { f32::NAN }
}
