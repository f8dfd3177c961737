//! A product of rows with a matrix: a few rows times two vectors of columns at a time, all in registers.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::{Epilogue, GemmScratch, OutputTile, PanelMatrix, StoredWeight, VECTORS};
use crate::buffer::Line;

/// Rows per block with 32 and with 16 vector registers.
const ROWS_WITH_32_REGISTERS: usize = 12;
const ROWS_WITH_16_REGISTERS: usize = 6;
/// Rows per block of one or two rows.
const FEW_ROWS: usize = 2;
/// Inputs per block: this part of a panel stays in the L1 cache for all rows.
const DEPTH: usize = 192;
/// Inputs between two prefetches of weights.
const PREFETCH_STEP: usize = 8;

/// A product of rows with some panels of a matrix.
pub struct Product<'a, T> {
    pub(super) matrix: &'a PanelMatrix<T>,
    pub(super) a: &'a [f32],
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) panels: Range<usize>,
    pub(super) scratch: &'a mut GemmScratch,
    pub(super) epilogue: &'a mut dyn Epilogue,
}

impl<T: StoredWeight> WithSimd for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if self.rows <= FEW_ROWS {
            self.run::<S, FEW_ROWS>(simd);
        } else if S::REGISTER_COUNT >= 32 {
            self.run::<S, ROWS_WITH_32_REGISTERS>(simd);
        } else {
            self.run::<S, ROWS_WITH_16_REGISTERS>(simd);
        }
    }
}

impl<T: StoredWeight> Product<'_, T> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        let Product { matrix, a, stride, rows, panels: taken, scratch, epilogue } = self;
        let PanelMatrix { isa, inputs, outputs, panel_width, panels } = matrix;
        let (inputs, outputs, panel_width) = (*inputs, *outputs, *panel_width);
        let blocks = rows.div_ceil(R);
        let GemmScratch { left, sums, widened } = scratch;
        left.grow(blocks * R * inputs);
        sums.grow(blocks * R * panel_width);
        for (block, to) in left.chunks_exact_mut((R * inputs).max(1)).take(blocks).enumerate() {
            pack_rows::<R>(|row| &a[(block * R + row).min(rows - 1) * stride..][..inputs], to);
        }
        for (number, panel) in
            panels.chunks_exact(panel_width * inputs).enumerate().take(taken.end).skip(taken.start)
        {
            let column = number * panel_width;
            for from in (0..inputs).step_by(DEPTH) {
                let to = (from + DEPTH).min(inputs);
                let right = &panel[panel_width * from..panel_width * to];
                // A single block of rows widens weights on the way.
                let wide = if blocks > 1 { T::widened(simd, right, widened) } else { &[] };
                // Prefetches a part of the next weights with every block of rows.
                let next = panels.lines_from((number * inputs + to) * panel_width);
                let each = next.len().min(DEPTH * panel_width / Line::of::<T>()).div_ceil(blocks);
                for (block, left) in left.chunks_exact(R * inputs).take(blocks).enumerate() {
                    let next = next.get(block * each..).unwrap_or_default();
                    let next = &next[..each.min(next.len())];
                    let values = &mut sums[block * R * panel_width..][..R * panel_width];
                    let (sums, _) = S::as_mut_simd_f32s(values).0.as_chunks_mut::<VECTORS>();
                    let Some(sums) = sums.first_chunk_mut::<R>() else { continue };
                    let before = if from == 0 { [[simd.splat_f32s(0.0); VECTORS]; R] } else { *sums };
                    let left = &left[R * from..R * to];
                    *sums = if blocks > 1 {
                        products::<f32, S, R>(simd, before, left, wide, next)
                    } else {
                        products::<T, S, R>(simd, before, left, T::rows::<S>(right), next)
                    };
                    if to == inputs {
                        let (row, columns) = (block * R, panel_width.min(outputs - column));
                        let tile =
                            OutputTile { row, column, rows: R.min(rows - row), columns, values, panel_width };
                        epilogue.store(*isa, tile);
                    }
                }
            }
        }
    }
}

/// Packs rows interleaved: the first value of each, then the second of each.
#[inline(always)]
fn pack_rows<'a, const R: usize>(row: impl Fn(usize) -> &'a [f32], to: &mut [f32]) {
    let (to, _) = to.as_chunks_mut::<R>();
    if R.is_multiple_of(4) {
        (0..R)
            .step_by(4)
            .for_each(|first| transpose::<R, 4>([0, 1, 2, 3].map(|n| row(first + n)), first, to));
    } else {
        (0..R).step_by(2).for_each(|first| transpose::<R, 2>([0, 1].map(|n| row(first + n)), first, to));
    }
}

/// Transposes `N` rows in squares, which the compiler keeps in registers.
#[inline(always)]
fn transpose<const R: usize, const N: usize>(rows: [&[f32]; N], first: usize, to: &mut [[f32; R]]) {
    let (squares, rest) = to.as_chunks_mut::<N>();
    let whole = squares.len();
    for (n, row) in rows.iter().enumerate() {
        for (to, x) in rest.iter_mut().zip(&row[whole * N..]) {
            to[first + n] = *x;
        }
    }
    let rows = rows.map(|row| &row.as_chunks::<N>().0[..whole]);
    for (at, square) in squares.iter_mut().enumerate() {
        let mut from = [[0.0; N]; N];
        for (from, row) in from.iter_mut().zip(&rows) {
            *from = row[at];
        }
        for (column, to) in square.iter_mut().enumerate() {
            for (to, from) in to[first..first + N].iter_mut().zip(&from) {
                *to = from[column];
            }
        }
    }
}

/// `sums + left · panel`, with prefetches of `next` spread over the loop.
#[inline(always)]
fn products<T: StoredWeight, S: Simd, const R: usize>(
    simd: S,
    mut sums: [[S::f32s; VECTORS]; R],
    left: &[f32],
    panel: &[T::Row<S>],
    next: &[Line],
) -> [[S::f32s; VECTORS]; R] {
    let mut next = next.chunks((next.len() * PREFETCH_STEP).div_ceil(DEPTH).max(1));
    let left = left.as_chunks::<R>().0.chunks(PREFETCH_STEP);
    for (right, left) in panel.chunks(PREFETCH_STEP).zip(left) {
        next.next().unwrap_or_default().iter().for_each(Line::fetch);
        for (right, left) in right.iter().zip(left) {
            let right = T::columns(simd, *right);
            for (sums, x) in sums.iter_mut().zip(left) {
                let x = simd.splat_f32s(*x);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = simd.mul_add_e_f32s(x, right, *sum);
                }
            }
        }
    }
    sums
}
