//! Rows of activations, quantized to 16 bits.

use super::GROUP;
use super::codes::{Codes, quantize};
use crate::isa::{Isa, Vectorized};

/// Rows of a block.
pub(super) const BLOCK: usize = 16;

/// Rows of activations, quantized to 16 bits. Each group of 32 inputs has a scale. A code is `256 · high + low`, two signed
/// bytes, for dot products of bytes.
///
/// Rows are in blocks of 16, the last of which may have fewer. In a block, the rows of a group are adjacent.
#[derive(Clone, Debug, Default)]
pub struct QuantizedRows {
    rows: usize,
    inputs: usize,
    codes: Vec<Codes>,
    /// A scale per group.
    scales: Vec<f32>,
    /// The sum of the codes of a group.
    sums: Vec<f32>,
    /// The sums of each 16 codes of a group.
    halves: Vec<[f32; 2]>,
}

impl QuantizedRows {
    /// Quantizes `rows` rows of `inputs` values that are `stride` apart. A group with a value that is not finite has the
    /// scale NaN, and so do its products. `inputs` is a multiple of 32.
    pub fn quantize(isa: Isa, values: &[f32], stride: usize, rows: usize, inputs: usize) -> QuantizedRows {
        let mut quantized = QuantizedRows::zeros(rows, inputs);
        quantized.parts(usize::MAX).for_each(|mut part| part.quantize(isa, values, stride));
        quantized
    }

    /// `rows` rows of `inputs` zeros. `inputs` is a multiple of 32.
    pub fn zeros(rows: usize, inputs: usize) -> QuantizedRows {
        assert!(inputs.is_multiple_of(GROUP), "{inputs} inputs are no whole groups");
        let groups = rows * inputs / GROUP;
        QuantizedRows {
            rows,
            inputs,
            codes: vec![Codes::default(); groups],
            scales: vec![0.0; groups],
            sums: vec![0.0; groups],
            halves: vec![[0.0; 2]; groups],
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

    /// Parts of the rows, to be quantized one by one: those of a block, at most `groups` groups of each.
    pub fn parts(&mut self, groups: usize) -> impl Iterator<Item = PartMut<'_>> {
        let (rows, of_row) = (self.rows, self.inputs / GROUP);
        let size = (BLOCK * of_row).max(1);
        let blocks = self.codes.chunks_mut(size).zip(self.scales.chunks_mut(size));
        let blocks = blocks.zip(self.sums.chunks_mut(size)).zip(self.halves.chunks_mut(size)).enumerate();
        blocks.flat_map(move |(block, (((codes, scales), sums), halves))| {
            let first = block * BLOCK;
            let height = BLOCK.min(rows - first);
            let groups = groups.clamp(1, of_row.max(1));
            let size = groups * height;
            let parts = codes.chunks_mut(size).zip(scales.chunks_mut(size));
            let parts = parts.zip(sums.chunks_mut(size)).zip(halves.chunks_mut(size)).enumerate();
            parts.map(move |(part, (((codes, scales), sums), halves))| PartMut {
                first,
                height,
                group: part * groups,
                codes,
                scales,
                sums,
                halves,
            })
        })
    }

    /// `R` rows from `row` on. They are in one block.
    #[inline(always)]
    pub(super) fn some<const R: usize>(&self, row: usize) -> SomeRows<'_, R> {
        let first = row / BLOCK * BLOCK;
        let height = BLOCK.min(self.rows - first);
        let groups = self.inputs / GROUP;
        assert!(row % BLOCK + R <= height, "rows of two blocks");
        let (skipped, place) = (row % BLOCK, first * groups..(first + height) * groups);
        SomeRows {
            height,
            codes: &self.codes[place.clone()][skipped..],
            scales: &self.scales[place.clone()][skipped..],
            sums: &self.sums[place.clone()][skipped..],
            halves: &self.halves[place][skipped..],
        }
    }
}

/// `R` rows of a block.
#[derive(Clone, Copy)]
pub(super) struct SomeRows<'a, const R: usize> {
    /// Rows of the block: the distance between groups.
    height: usize,
    codes: &'a [Codes],
    scales: &'a [f32],
    sums: &'a [f32],
    halves: &'a [[f32; 2]],
}

impl<'a, const R: usize> SomeRows<'a, R> {
    /// The codes of the 32 inputs of a group.
    #[inline(always)]
    pub(super) fn codes(&self, group: usize) -> &'a [Codes; R] {
        rows(self.codes, group * self.height)
    }

    /// The scale of each row.
    #[inline(always)]
    pub(super) fn scales(&self, group: usize) -> &'a [f32; R] {
        rows(self.scales, group * self.height)
    }

    /// The sum of the codes of each row.
    #[inline(always)]
    pub(super) fn sums(&self, group: usize) -> &'a [f32; R] {
        rows(self.sums, group * self.height)
    }

    /// The sums of both halves of the codes of each row.
    #[inline(always)]
    pub(super) fn halves(&self, group: usize) -> &'a [[f32; 2]; R] {
        rows(self.halves, group * self.height)
    }
}

#[inline(always)]
fn rows<T, const R: usize>(of: &[T], from: usize) -> &[T; R] {
    &of[from..].as_chunks().0[0]
}

/// Some groups of a block of rows, to be quantized.
pub struct PartMut<'a> {
    /// The first row.
    first: usize,
    /// Number of rows.
    height: usize,
    /// The first group.
    group: usize,
    codes: &'a mut [Codes],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    halves: &'a mut [[f32; 2]],
}

impl PartMut<'_> {
    /// Quantizes the groups. `values` are those of all rows, which are `stride` apart.
    pub fn quantize(&mut self, isa: Isa, values: &[f32], stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if super::codes_avx512::has_vectors(isa) {
            // SAFETY: the processor has these instructions.
            let group = |values: &_, codes: &mut _| unsafe { super::codes_avx512::quantize(values, codes) };
            return self.each_group(values, stride, group);
        }
        isa.run(Quantize { values, stride, to: self });
    }

    /// Calls `quantize` for each group. It writes the codes, and returns the scale and the sums of both halves.
    #[inline(always)]
    fn each_group(
        &mut self,
        values: &[f32],
        stride: usize,
        quantize: impl Fn(&[f32; GROUP], &mut Codes) -> (f32, [f32; 2]),
    ) {
        let PartMut { first, height, group, codes, scales, sums, halves } = self;
        let inputs = codes.len() / *height * GROUP;
        for row in 0..*height {
            let from = (*first + row) * stride + *group * GROUP;
            let (values, _) = values[from..][..inputs].as_chunks::<GROUP>();
            for (group, values) in values.iter().enumerate() {
                let at = group * *height + row;
                (scales[at], halves[at]) = quantize(values, &mut codes[at]);
                sums[at] = halves[at][0] + halves[at][1];
            }
        }
    }
}

struct Quantize<'a, 'b> {
    values: &'a [f32],
    stride: usize,
    to: &'a mut PartMut<'b>,
}

impl Vectorized for Quantize<'_, '_> {
    #[inline(always)]
    fn run(self) {
        self.to.each_group(self.values, self.stride, quantize);
    }
}
