//! Formats of quantized weights.

use half::f16;

use super::{PANEL, RUN, VECTOR};

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeWidth {
    /// Two codes per byte.
    Four,
    /// Four codes in three bytes.
    Six,
    /// One code per byte.
    Eight,
}

/// The codes of a run are in vectors of four inputs for each of the 16 columns of a panel. Of four and six bits, the first two
/// vectors hold the low four bits of two vectors each. A third holds the upper two bits of six.
impl CodeWidth {
    /// Number of bits.
    const fn bits(self) -> usize {
        match self {
            CodeWidth::Four => 4,
            CodeWidth::Six => 6,
            CodeWidth::Eight => 8,
        }
    }

    /// The largest code.
    pub(super) const fn largest(self) -> u8 {
        u8::MAX >> (8 - self.bits())
    }

    /// Bytes of a run.
    pub(super) const fn run_bytes(self) -> usize {
        RUN * PANEL * self.bits() / 8
    }

    /// The code at `at` of vector `word` of a run.
    #[inline(always)]
    pub(super) fn get(self, run: &[u8], word: usize, at: usize) -> u8 {
        let nibble = || run[word / 2 * VECTOR + at] >> (word % 2 * 4) & 0x0f;
        match self {
            CodeWidth::Four => nibble(),
            CodeWidth::Six => nibble() | (run[2 * VECTOR + at] >> (2 * word) & 3) << 4,
            CodeWidth::Eight => run[word * VECTOR + at],
        }
    }

    /// Sets the codes of a column of a run.
    pub(super) fn set(self, run: &mut [u8], column: usize, codes: &[u8; RUN]) {
        let words = codes.as_chunks().0;
        let word = |word: usize| u32::from_le_bytes(words[word]);
        let mut put = |vector: usize, bytes: u32| {
            run[vector * VECTOR + 4 * column..][..4].copy_from_slice(&bytes.to_le_bytes());
        };
        if self == CodeWidth::Eight {
            return (0..RUN / 4).for_each(|vector| put(vector, word(vector)));
        }
        let low = |vector: usize| word(vector) & 0x0f0f_0f0f;
        (0..2).for_each(|vector| put(vector, low(2 * vector) | low(2 * vector + 1) << 4));
        if self == CodeWidth::Six {
            let upper = |vector: usize| (word(vector) >> 4 & 0x0303_0303) << (2 * vector);
            put(2, upper(0) | upper(1) | upper(2) | upper(3));
        }
    }
}

/// The format of quantized weights. Each group of inputs has a scale:
/// - without minimums, a weight is `scale · (code - zero)`;
/// - with minimums, it is `scale · code - minimum`.
///
/// In super-blocks of several groups, scales and minimums are products of a small integer per group and a factor per
/// super-block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantFormat {
    /// Bits of a code.
    pub width: CodeWidth,
    /// Inputs per group: 16 or 32.
    pub group: usize,
    /// Groups per super-block; 1 if each group has its own factor.
    pub groups: usize,
    /// The code of zero, in formats without minimums.
    pub zero: u8,
    /// Whether groups have minimums.
    pub has_minimums: bool,
}

impl QuantFormat {
    /// Inputs per super-block.
    pub fn block(&self) -> usize {
        self.group * self.groups
    }

    /// Whether groups have integer scales.
    pub(super) fn is_super(&self) -> bool {
        self.groups > 1
    }

    /// Bytes of the codes of a group, for all columns of a panel.
    pub(super) fn group_bytes(&self) -> usize {
        self.group / RUN * self.width.run_bytes()
    }
}

/// The weights of one output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantRow {
    /// A code per input. Without minimums, a code less the code of zero is a signed byte.
    pub codes: Vec<u8>,
    /// A scale per group; empty without super-blocks. Scales of codes of four bits are between 0 and 63, and products of a
    /// code and a scale between -16,384 and 16,383.
    pub group_scales: Vec<i8>,
    /// A minimum per group; empty without super-blocks or minimums.
    pub group_minimums: Vec<u8>,
    /// A factor of scales per super-block, as the bits of an f16.
    pub scales: Vec<u16>,
    /// A factor of minimums per super-block, as the bits of an f16; empty without minimums.
    pub minimums: Vec<u16>,
}

impl QuantRow {
    /// Appends the weights in f32 to `to`.
    pub fn dequantize(&self, format: QuantFormat, to: &mut Vec<f32>) {
        let of = |bits: u16| f16::from_bits(bits).to_f32();
        for (group, codes) in self.codes.chunks_exact(format.group).enumerate() {
            let block = group / format.groups;
            let mut scale = of(self.scales[block]);
            if format.is_super() {
                scale *= f32::from(self.group_scales[group]);
            }
            if !format.has_minimums {
                let zero = f32::from(format.zero);
                to.extend(codes.iter().map(|code| scale * (f32::from(*code) - zero)));
                continue;
            }
            let mut minimum = of(self.minimums[block]);
            if format.is_super() {
                minimum *= f32::from(self.group_minimums[group]);
            }
            to.extend(codes.iter().map(|code| scale * f32::from(*code) - minimum));
        }
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        let QuantRow { codes, group_scales, group_minimums, scales, minimums } = self;
        codes.clear();
        group_scales.clear();
        group_minimums.clear();
        scales.clear();
        minimums.clear();
    }
}
