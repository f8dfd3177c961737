//! A panel of a matrix: the weights of 16 outputs.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use half::f16;

use super::format::QuantFormat;
use super::{PANEL, RUN};

/// The weights of one panel.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) format: QuantFormat,
    pub(super) codes: &'a [u8],
    pub(super) group_scales: &'a [i8],
    pub(super) group_minimums: &'a [u8],
    pub(super) scales: &'a [u16],
    pub(super) minimums: &'a [u16],
}

impl<'a> Panel<'a> {
    /// The codes of a super-block.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn block_codes(&self, block: usize) -> &'a [u8] {
        let groups = self.format.groups;
        self.group_codes(block * groups..(block + 1) * groups)
    }

    /// The codes of some groups.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn group_codes(&self, groups: Range<usize>) -> &'a [u8] {
        let bytes = self.format.group_bytes();
        &self.codes[groups.start * bytes..groups.end * bytes]
    }

    /// The code of an input of a group.
    #[inline(always)]
    pub(super) fn code(&self, group: usize, input: usize, column: usize) -> u8 {
        let (format, run) = (self.format, input / RUN);
        let first = group * format.group_bytes() + run * format.width.run_bytes();
        format.width.get(&self.codes[first..], input % RUN / 4, column * 4 + input % 4)
    }

    /// Scale and minimum of a group. Without minimums, the minimum is the scale times the code of zero.
    #[inline(always)]
    pub(super) fn scale_and_minimum(&self, group: usize, column: usize) -> (f32, f32) {
        let format = self.format;
        let (integer, factor) = (group * PANEL + column, group / format.groups * PANEL + column);
        let of = |factors: &[u16]| f16::from_bits(factors[factor]).to_f32();
        let mut scale = of(self.scales);
        if format.is_super() {
            scale *= f32::from(self.group_scales[integer]);
        }
        let minimum = match (format.has_minimums, format.is_super()) {
            (false, _) => scale * f32::from(format.zero),
            (true, false) => of(self.minimums),
            (true, true) => of(self.minimums) * f32::from(self.group_minimums[integer]),
        };
        (scale, minimum)
    }
}
