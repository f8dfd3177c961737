//! Products for any instruction set, one row at a time.

use super::byte_codes::RowGroup;
use super::format::CodeWidth;
use super::panel::Panel;
use super::rows::{ByteRows, QuantizedRows};
use super::{BLOCK, GROUP, PANEL, RUN, VECTOR};
use crate::isa::Vectorized;

/// The products of all rows with a panel.
pub(super) struct Multiply<'a, P: ?Sized> {
    pub(super) panel: &'a Panel<'a>,
    pub(super) rows: &'a QuantizedRows,
    pub(super) put: &'a mut P,
}

impl<P: FnMut(usize, &[f32; PANEL]) + ?Sized> Vectorized for Multiply<'_, P> {
    #[inline(always)]
    fn run(self) {
        let Multiply { panel, rows, put } = self;
        let format = panel.format;
        for number in 0..rows.rows() {
            let row = rows.some::<1>(number);
            let mut sums = [0.0; PANEL];
            for (group, codes) in panel.codes.chunks_exact(format.group_bytes()).enumerate() {
                let first = group * format.group;
                let [block] = row.block(first / BLOCK);
                let skipped = first % BLOCK / 4;
                let inputs = |at: usize| {
                    let (high, low) = (bytes(block.high[skipped + at]), bytes(block.low[skipped + at]));
                    std::array::from_fn(|n| 256 * high[n] + low[n])
                };
                let mut dots = [0; PANEL];
                for (run, codes) in codes.chunks_exact(format.width.run_bytes()).enumerate() {
                    for at in 0..RUN / 4 {
                        add(&vector(format.width, codes, at), inputs(run * RUN / 4 + at), &mut dots);
                    }
                }
                let (scale, total) = (block.scale, block.sum(format.group, first % BLOCK / format.group));
                for (column, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
                    let (by, minimum) = panel.scale_and_minimum(group, column);
                    *sum += scale * (by * dot as f32 - minimum * total);
                }
            }
            put(number, &sums);
        }
    }
}

/// The products of all rows of bytes with a panel.
pub(super) struct MultiplyBytes<'a, P: ?Sized> {
    pub(super) panel: &'a Panel<'a>,
    pub(super) rows: &'a ByteRows,
    pub(super) put: &'a mut P,
}

impl<P: FnMut(usize, &[f32; PANEL]) + ?Sized> Vectorized for MultiplyBytes<'_, P> {
    #[inline(always)]
    fn run(self) {
        let MultiplyBytes { panel, rows, put } = self;
        let format = panel.format;
        for number in 0..rows.rows() {
            let row: Vec<&[RowGroup; 1]> = rows.some(number).blocks().collect();
            let mut sums = [0.0; PANEL];
            for (group, codes) in panel.codes.chunks_exact(format.group_bytes()).enumerate() {
                let first = group * format.group;
                let ([own], skipped) = (row[first / GROUP], first % GROUP / 4);
                let mut dots = [0; PANEL];
                for (run, codes) in codes.chunks_exact(format.width.run_bytes()).enumerate() {
                    for at in 0..RUN / 4 {
                        let inputs = own.codes[skipped + run * RUN / 4 + at];
                        add(&vector(format.width, codes, at), bytes(inputs), &mut dots);
                    }
                }
                let total = if format.group == GROUP { own.sum } else { own.half_sum(group % 2) };
                for (column, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
                    let (by, minimum) = panel.scale_and_minimum(group, column);
                    *sum += own.scale * (by * dot as f32 - minimum * total);
                }
            }
            put(number, &sums);
        }
    }
}

/// The codes of vector `word` of a run.
#[inline(always)]
fn vector(width: CodeWidth, run: &[u8], word: usize) -> [u8; VECTOR] {
    // One loop for each width.
    match width {
        CodeWidth::Four => std::array::from_fn(|at| CodeWidth::Four.get(run, word, at)),
        CodeWidth::Six => std::array::from_fn(|at| CodeWidth::Six.get(run, word, at)),
        CodeWidth::Eight => std::array::from_fn(|at| CodeWidth::Eight.get(run, word, at)),
    }
}

/// The signed bytes of a word.
#[inline(always)]
fn bytes(word: i32) -> [i32; 4] {
    word.to_le_bytes().map(|byte| i32::from(byte.cast_signed()))
}

/// Adds the products of four inputs to the sums of 16 columns.
#[inline(always)]
fn add(codes: &[u8; VECTOR], inputs: [i32; 4], dots: &mut [i32; PANEL]) {
    for (dot, codes) in dots.iter_mut().zip(codes.as_chunks::<4>().0) {
        for (code, input) in codes.iter().zip(inputs) {
            *dot += i32::from(*code) * input;
        }
    }
}
