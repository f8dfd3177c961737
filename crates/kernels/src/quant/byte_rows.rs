//! Rows of activations, quantized to 8 bits.

use super::GROUP;
use super::byte_codes::{RowGroup, quantize};
#[cfg(target_arch = "x86_64")]
use super::instructions::{has_short_vectors, has_vectors};
use crate::isa::{Isa, Vectorized};

/// Rows that are multiplied together. Their groups are adjacent.
const TOGETHER: usize = 8;

/// Rows of activations, quantized to 8 bits, with a scale per 32 inputs: half the work of [16 bits](super::QuantizedRows).
#[derive(Clone, Debug, Default)]
pub struct ByteRows {
    rows: usize,
    inputs: usize,
    groups: Vec<RowGroup>,
}

impl ByteRows {
    /// Quantizes `rows` rows of `inputs` values that are `stride` apart. A group with a value that is not finite has the
    /// scale NaN, and so do its products. `inputs` is a multiple of 32.
    pub fn quantize(isa: Isa, values: &[f32], stride: usize, rows: usize, inputs: usize) -> ByteRows {
        let mut quantized = ByteRows::zeros(rows, inputs);
        quantized.parts(usize::MAX).for_each(|mut part| part.quantize(isa, values, stride));
        quantized
    }

    /// `rows` rows of `inputs` zeros. `inputs` is a multiple of 32.
    pub fn zeros(rows: usize, inputs: usize) -> ByteRows {
        assert!(inputs.is_multiple_of(GROUP), "{inputs} inputs are no whole groups");
        ByteRows { rows, inputs, groups: vec![RowGroup::ZEROS; rows * (inputs / GROUP)] }
    }

    /// Parts of the rows, to be quantized one by one: at most `count` groups of up to eight rows.
    pub fn parts(&mut self, count: usize) -> impl Iterator<Item = BytePartMut<'_>> {
        let (rows, of_row) = (self.rows, (self.inputs / GROUP).max(1));
        let count = count.clamp(1, of_row);
        self.groups.chunks_mut(TOGETHER * of_row).enumerate().flat_map(move |(number, all)| {
            let first = number * TOGETHER;
            let height = TOGETHER.min(rows - first);
            let parts = all.chunks_mut(count * height).enumerate();
            parts.map(move |(part, groups)| BytePartMut { first, height, skipped: part * count, groups })
        })
    }

    /// Whether products with these rows have vector code. Plain code is slower than with [16 bits](super::QuantizedRows).
    pub fn are_vectorized(isa: Isa) -> bool {
        cfg_select! {
            target_arch = "x86_64" => has_short_vectors(isa),
            target_arch = "aarch64" => isa == Isa::Other && crate::detect::has_dot_products(),
            _ => false,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Each group of `R` rows from `row` on, which are adjacent.
    #[inline(always)]
    pub(super) fn some<const R: usize>(&self, row: usize) -> impl Iterator<Item = &[RowGroup; R]> {
        let (first, of_row) = (row / TOGETHER * TOGETHER, self.inputs / GROUP);
        let height = TOGETHER.min(self.rows - first);
        assert!(row - first + R <= height, "rows that are not adjacent");
        let groups = self.groups[first * of_row..][..height * of_row].chunks_exact(height);
        groups.map(move |groups| &groups[row - first..].as_chunks().0[0])
    }
}

/// Some groups of adjacent rows, to be quantized.
pub struct BytePartMut<'a> {
    /// The first row.
    first: usize,
    /// Number of rows.
    height: usize,
    /// Groups of a row before these.
    skipped: usize,
    groups: &'a mut [RowGroup],
}

impl BytePartMut<'_> {
    /// Quantizes the groups. `values` are those of all rows, which are `stride` apart.
    pub fn quantize(&mut self, isa: Isa, values: &[f32], stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if has_vectors(isa) {
            // SAFETY: the processor has these instructions.
            let group = |values: &_, to: &mut _| unsafe { super::codes_avx512::quantize_bytes(values, to) };
            return self.each_group(values, stride, group);
        }
        isa.run(Quantize { values, stride, to: self });
    }

    #[inline(always)]
    fn each_group(&mut self, values: &[f32], stride: usize, quantize: impl Fn(&[f32; GROUP], &mut RowGroup)) {
        let BytePartMut { first, height, skipped, groups } = self;
        for row in 0..*height {
            let values = &values[(*first + row) * stride + *skipped * GROUP..];
            let of_row = groups.iter_mut().skip(row).step_by(*height);
            values.as_chunks().0.iter().zip(of_row).for_each(|(values, to)| quantize(values, to));
        }
    }
}

struct Quantize<'a, 'b> {
    values: &'a [f32],
    stride: usize,
    to: &'a mut BytePartMut<'b>,
}

impl Vectorized for Quantize<'_, '_> {
    #[inline(always)]
    fn run(self) {
        self.to.each_group(self.values, self.stride, quantize);
    }
}
