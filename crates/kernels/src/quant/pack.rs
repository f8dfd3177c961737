//! Packs quantized weights in panels.

use super::format::{CodeWidth, QuantFormat, QuantRow};
use super::matrix::QuantMatrix;
use super::{BLOCK, GROUP, PANEL, RUN};
use crate::buffer::Buffer;
use crate::isa::Isa;

impl QuantMatrix {
    /// Packs `[outputs, inputs]`. `read` writes the weights of an output to a row, which is empty. `inputs` is a whole
    /// number of super-blocks.
    pub fn pack(
        isa: Isa,
        format: QuantFormat,
        outputs: usize,
        inputs: usize,
        mut read: impl FnMut(usize, &mut QuantRow),
    ) -> QuantMatrix {
        assert!(inputs.is_multiple_of(format.block()), "{inputs} inputs are no whole blocks");
        assert!(matches!((format.width, format.group), (_, 32) | (CodeWidth::Six | CodeWidth::Eight, 16)));
        assert!(if format.is_super() { format.block() == BLOCK } else { format.group == GROUP });
        let panels = outputs.div_ceil(PANEL);
        let (groups, blocks) = (inputs / format.group, inputs / format.block());
        let integers = if format.is_super() { panels * groups * PANEL } else { 0 };
        let factors = panels * blocks * PANEL;
        let mut matrix = QuantMatrix {
            isa,
            format,
            inputs,
            outputs,
            codes: Buffer::zeros(panels * groups * format.group_bytes()),
            group_scales: Buffer::zeros(integers),
            group_minimums: Buffer::zeros(if format.has_minimums { integers } else { 0 }),
            scales: Buffer::zeros(factors),
            minimums: Buffer::zeros(if format.has_minimums { factors } else { 0 }),
        };
        let mut row = QuantRow::default();
        for output in 0..outputs {
            row.clear();
            read(output, &mut row);
            assert!(row.codes.len() == inputs && row.scales.len() == blocks);
            matrix.put(output, &row);
        }
        matrix
    }

    fn put(&mut self, output: usize, row: &QuantRow) {
        let (panel, column, format) = (output / PANEL, output % PANEL, self.format);
        let (groups, blocks) = (self.inputs / format.group, self.inputs / format.block());
        let bytes = format.group_bytes();
        for (group, codes) in row.codes.chunks_exact(format.group).enumerate() {
            let to = &mut self.codes[(panel * groups + group) * bytes..][..bytes];
            let largest = codes.iter().copied().max().unwrap_or(0);
            assert!(largest <= format.width.largest(), "a code of {largest}");
            if let Some(scale) = row.group_scales.get(group) {
                assert!(is_valid(format.width, largest, *scale), "a scale of {scale}");
            }
            let runs = to.chunks_exact_mut(format.width.run_bytes());
            for (run, codes) in runs.zip(codes.chunks_exact(RUN)) {
                for (input, code) in codes.iter().enumerate() {
                    format.width.set(run, input / 4, column * 4 + input % 4, *code);
                }
            }
        }
        let at = |index: usize, count: usize| (panel * count + index) * PANEL + column;
        let integers = row.group_scales.iter().zip(0..groups);
        integers.for_each(|(x, group)| self.group_scales[at(group, groups)] = *x);
        let integers = row.group_minimums.iter().zip(0..groups);
        integers.for_each(|(x, group)| self.group_minimums[at(group, groups)] = *x);
        row.scales.iter().enumerate().for_each(|(block, x)| self.scales[at(block, blocks)] = *x);
        row.minimums.iter().enumerate().for_each(|(block, x)| self.minimums[at(block, blocks)] = *x);
    }
}

/// Whether the products of codes with a scale can be split into bytes.
fn is_valid(width: CodeWidth, largest: u8, scale: i8) -> bool {
    match width {
        CodeWidth::Four => (0..64).contains(&scale),
        CodeWidth::Six | CodeWidth::Eight => {
            (-(1 << 14)..1 << 14).contains(&(i32::from(largest) * i32::from(scale)))
        }
    }
}
