//! Packs quantized weights in panels.

use std::ops::Range;
use std::slice::ChunksMut;

use super::format::{CodeWidth, QuantFormat, QuantRow};
use super::matrix::QuantMatrix;
use super::{BLOCK, GROUP, PANEL, RUN};
use crate::buffer::{Buffer, Number};
use crate::isa::Isa;
use crate::team::Team;

/// Panels that a thread packs at a time.
const PART: usize = 8;

impl QuantMatrix {
    /// Packs `[outputs, inputs]` with the threads of a team. `read` writes the weights of an output to a row, which is
    /// empty. `inputs` is a whole number of super-blocks.
    pub fn pack(
        (isa, team): (Isa, &Team),
        format: QuantFormat,
        outputs: usize,
        inputs: usize,
        read: impl Fn(usize, &mut QuantRow) + Sync,
    ) -> QuantMatrix {
        assert!(inputs.is_multiple_of(format.block()), "{inputs} inputs are no whole blocks");
        assert!(matches!((format.width, format.group), (_, 32) | (CodeWidth::Six | CodeWidth::Eight, 16)));
        // The products of codes of four bits with scales are not signed.
        assert!(format.width != CodeWidth::Four || !format.is_super() || format.has_minimums);
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
            groups,
            blocks,
            codes: Buffer::zeros(panels * groups * format.group_bytes()),
            group_scales: Buffer::zeros(integers),
            group_minimums: Buffer::zeros(if format.has_minimums { integers } else { 0 }),
            scales: Buffer::zeros(factors),
            minimums: Buffer::zeros(if format.has_minimums { factors } else { 0 }),
        };
        let parts = panels.div_ceil(PART);
        let mut codes = split(&mut matrix.codes, groups * format.group_bytes());
        let mut group_scales = split(&mut matrix.group_scales, groups * PANEL);
        let mut group_minimums = split(&mut matrix.group_minimums, groups * PANEL);
        let mut scales = split(&mut matrix.scales, blocks * PANEL);
        let mut minimums = split(&mut matrix.minimums, blocks * PANEL);
        let parts = (0..parts).map(|part| Panels {
            format,
            outputs: part * PART * PANEL..((part + 1) * PART * PANEL).min(outputs),
            codes: codes.next().unwrap_or_default(),
            group_scales: group_scales.next().unwrap_or_default(),
            group_minimums: group_minimums.next().unwrap_or_default(),
            scales: scales.next().unwrap_or_default(),
            minimums: minimums.next().unwrap_or_default(),
        });
        team.each(parts, |mut part| {
            let mut row = QuantRow::default();
            for output in part.outputs.clone() {
                row.clear();
                read(output, &mut row);
                assert!(row.codes.len() == inputs && row.scales.len() == blocks);
                part.put(output - part.outputs.start, &row);
            }
        });
        matrix
    }
}

/// The parts of a buffer with `length` values per panel. An empty buffer has none.
fn split<T: Number>(buffer: &mut Buffer<T>, length: usize) -> ChunksMut<'_, T> {
    buffer.chunks_mut((PART * length).max(1))
}

/// Some panels of a matrix.
struct Panels<'a> {
    format: QuantFormat,
    outputs: Range<usize>,
    codes: &'a mut [u8],
    group_scales: &'a mut [i8],
    group_minimums: &'a mut [u8],
    scales: &'a mut [u16],
    minimums: &'a mut [u16],
}

impl Panels<'_> {
    fn put(&mut self, output: usize, row: &QuantRow) {
        let (panel, column, format) = (output / PANEL, output % PANEL, self.format);
        let groups = row.codes.len() / format.group;
        let bytes = format.group_bytes();
        for (group, codes) in row.codes.chunks_exact(format.group).enumerate() {
            let to = &mut self.codes[(panel * groups + group) * bytes..][..bytes];
            let [least, largest] =
                [codes.iter().min(), codes.iter().max()].map(|code| code.copied().unwrap_or(0));
            assert!(largest <= format.width.largest(), "a code of {largest}");
            let is_signed_byte = |code: u8| (-128..128).contains(&(i32::from(code) - i32::from(format.zero)));
            assert!(format.has_minimums || (is_signed_byte(least) && is_signed_byte(largest)));
            if let Some(scale) = row.group_scales.get(group) {
                assert!(
                    is_valid(format, [least, largest], *scale),
                    "codes {least} to {largest}, scale {scale}"
                );
            }
            let runs = to.chunks_exact_mut(format.width.run_bytes());
            for (run, codes) in runs.zip(codes.as_chunks::<RUN>().0) {
                format.width.set(run, column, codes);
            }
        }
        place(self.group_scales, &row.group_scales, panel, column);
        place(self.group_minimums, &row.group_minimums, panel, column);
        place(self.scales, &row.scales, panel, column);
        place(self.minimums, &row.minimums, panel, column);
    }
}

/// Puts the values of a row into a column of its panel.
fn place<T: Copy>(to: &mut [T], values: &[T], panel: usize, column: usize) {
    let panel = &mut to[panel * values.len() * PANEL..][..values.len() * PANEL];
    panel.iter_mut().skip(column).step_by(PANEL).zip(values).for_each(|(to, x)| *to = *x);
}

/// Whether the products of codes with a scale can be split into bytes: those of the codes themselves, and without minimums
/// those of the codes less the code of zero.
fn is_valid(format: QuantFormat, codes: [u8; 2], scale: i8) -> bool {
    if format.width == CodeWidth::Four {
        return (0..64).contains(&scale);
    }
    let can_be_split = |code: i32| (-(1 << 14)..1 << 14).contains(&(code * i32::from(scale)));
    codes.into_iter().map(i32::from).all(|code| {
        can_be_split(code) && (format.has_minimums || can_be_split(code - i32::from(format.zero)))
    })
}
