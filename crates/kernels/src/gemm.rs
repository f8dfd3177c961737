//! Products in f32 with prepacked weights: a few rows times two vectors of columns at a time, all in registers.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::buffer::{Buffer, Line};
use crate::isa::{Isa, Vectorized};
use crate::rows::{Activation, copy};

/// Vectors of columns taken together.
const VECTORS: usize = 2;
/// Rows taken together where there are 32 registers, and where there are 16.
const ROWS_WITH_32_REGISTERS: usize = 12;
const ROWS_WITH_16_REGISTERS: usize = 6;
/// Inputs taken at a time: so much of a panel of weights stays in the nearest cache for all rows.
const DEPTH: usize = 192;
/// Inputs between two lines of weights that are asked for ahead.
const PREFETCH_STEP: usize = 8;

/// What becomes of a product: it is handed over in pieces while they are warm.
pub trait Epilogue {
    /// Takes a tile.
    fn store(&mut self, tile: OutputTile<'_>);
}

/// Some rows and columns of a product.
#[derive(Debug)]
pub struct OutputTile<'a> {
    /// The first row, and the first column.
    pub row: usize,
    /// See `row`.
    pub column: usize,
    /// Rows and columns that are part of the product.
    pub rows: usize,
    /// See `rows`.
    pub columns: usize,
    /// Rows one after the other, each filled up with zeros.
    pub values: &'a mut [f32],
    /// Numbers in a row of `values`.
    pub panel_width: usize,
}

impl OutputTile<'_> {
    /// Each row's number and its part of the product.
    #[inline(always)]
    fn rows(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        let columns = self.columns;
        let rows = self.values.chunks_exact_mut(self.panel_width).take(self.rows);
        (self.row..).zip(rows.map(move |row| &mut row[..columns]))
    }
}

/// Each row of each tile by itself: its number, its first column, its values.
impl<F: FnMut(usize, usize, &mut [f32])> Epilogue for F {
    #[inline(always)]
    fn store(&mut self, mut tile: OutputTile<'_>) {
        let column = tile.column;
        tile.rows().for_each(|(row, values)| self(row, column, values));
    }
}

/// Stores `activation(product + bias)`.
pub struct Store<'a> {
    /// A summand a column.
    pub bias: &'a [f32],
    /// The nonlinearity.
    pub activation: Activation,
    /// Rows `stride` apart.
    pub to: &'a mut [f32],
    /// See `to`.
    pub stride: usize,
}

impl Epilogue for Store<'_> {
    #[inline(always)]
    fn store(&mut self, mut tile: OutputTile<'_>) {
        let (column, columns) = (tile.column, tile.columns);
        for (_, values) in tile.rows() {
            values.iter_mut().zip(&self.bias[column..column + columns]).for_each(|(x, bias)| *x += bias);
        }
        // All at once: what is done to one number takes long, and many can be under way.
        self.activation.apply(tile.values);
        for (row, values) in tile.rows() {
            copy(values, &mut self.to[row * self.stride + column..][..columns]);
        }
    }
}

/// Adds `product + bias` to rows.
pub struct Accumulate<'a> {
    /// A summand a column.
    pub bias: &'a [f32],
    /// Rows `stride` apart.
    pub to: &'a mut [f32],
    /// See `to`.
    pub stride: usize,
}

impl Epilogue for Accumulate<'_> {
    #[inline(always)]
    fn store(&mut self, mut tile: OutputTile<'_>) {
        let (column, columns) = (tile.column, tile.columns);
        for (row, values) in tile.rows() {
            let to = &mut self.to[row * self.stride + column..][..columns];
            let bias = &self.bias[column..column + columns];
            for ((to, value), bias) in to.iter_mut().zip(values.iter()).zip(bias) {
                *to += value + bias;
            }
        }
    }
}

/// Room that is kept between products.
#[derive(Default)]
pub struct GemmScratch {
    left: Buffer<f32>,
    sums: Buffer<f32>,
}

impl GemmScratch {
    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        self.left.bytes() + self.sums.bytes()
    }
}

/// Weights `[outputs, inputs]`, packed in panels of columns as the kernel reads them.
pub struct PackedMatrix {
    isa: Isa,
    inputs: usize,
    outputs: usize,
    panel_width: usize,
    panels: Buffer<f32>,
}

impl PackedMatrix {
    /// Packs `weights`, `[outputs, inputs]` row after row.
    pub fn pack(isa: Isa, weights: &[f32], outputs: usize, inputs: usize) -> PackedMatrix {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        let panel_width = VECTORS * isa.dispatch(Lanes);
        let mut panels = Buffer::zeros(outputs.next_multiple_of(panel_width) * inputs);
        for (number, panel) in panels.chunks_exact_mut((panel_width * inputs).max(1)).enumerate() {
            for lane in 0..panel_width.min(outputs - number * panel_width) {
                let row = &weights[(number * panel_width + lane) * inputs..][..inputs];
                for (column, weight) in row.iter().enumerate() {
                    panel[column * panel_width + lane] = *weight;
                }
            }
        }
        PackedMatrix { isa, inputs, outputs, panel_width, panels }
    }

    /// Numbers in.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers out.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `a · weightsᵀ` for the rows of `a`, which are `stride` apart; `scratch` is kept between calls.
    pub fn multiply(
        &self,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut GemmScratch,
        epilogue: &mut impl Epilogue,
    ) {
        assert!(stride >= self.inputs && a.len() >= rows * stride);
        let panels = 0..self.panels();
        self.isa.dispatch(Gemm { matrix: self, a, stride, rows, panels, scratch, epilogue });
    }

    /// Panels of columns, by which the work may be shared out.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel_width)
    }

    /// The columns of some panels of the product.
    pub fn multiply_columns(
        &self,
        a: &[f32],
        stride: usize,
        rows: usize,
        panels: Range<usize>,
    ) -> ColumnBlock {
        assert!(stride >= self.inputs && a.len() >= rows * stride && panels.end <= self.panels());
        let (first, end) =
            (panels.start * self.panel_width, (panels.end * self.panel_width).min(self.outputs));
        let mut part =
            ColumnBlock { first, rows, columns: end - first, values: vec![0.0; rows * (end - first)] };
        let columns = part.columns;
        let epilogue = &mut |row: usize, column: usize, values: &mut [f32]| {
            copy(values, &mut part.values[row * columns + column - first..][..values.len()]);
        };
        let scratch = &mut GemmScratch::default();
        self.isa.dispatch(Gemm { matrix: self, a, stride, rows, panels, scratch, epilogue });
        part
    }
}

/// Some columns of a product.
pub struct ColumnBlock {
    first: usize,
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl ColumnBlock {
    /// Hands it over.
    pub fn drain(&mut self, isa: Isa, epilogue: &mut impl Epilogue) {
        struct Work<'a, E>(&'a mut E, OutputTile<'a>);
        impl<E: Epilogue> Vectorized for Work<'_, E> {
            #[inline(always)]
            fn run(self) {
                self.0.store(self.1);
            }
        }
        let ColumnBlock { first: column, rows, columns, ref mut values } = *self;
        if columns > 0 {
            isa.run(Work(
                epilogue,
                OutputTile { row: 0, column, rows, columns, values, panel_width: columns },
            ));
        }
    }
}

struct Gemm<'a, E> {
    matrix: &'a PackedMatrix,
    a: &'a [f32],
    stride: usize,
    rows: usize,
    panels: Range<usize>,
    scratch: &'a mut GemmScratch,
    epilogue: &'a mut E,
}

impl<E: Epilogue> WithSimd for Gemm<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 {
            self.run::<S, ROWS_WITH_32_REGISTERS>(simd);
        } else {
            self.run::<S, ROWS_WITH_16_REGISTERS>(simd);
        }
    }
}

impl<E: Epilogue> Gemm<'_, E> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        let Gemm { matrix, a, stride, rows, panels: taken, scratch, epilogue } = self;
        let PackedMatrix { inputs, outputs, panel_width, panels, .. } = matrix;
        let (inputs, outputs, panel_width) = (*inputs, *outputs, *panel_width);
        let blocks = rows.div_ceil(R);
        let GemmScratch { left, sums } = scratch;
        left.grow(blocks * R * inputs);
        sums.grow(blocks * R * panel_width);
        for (block, to) in left.chunks_exact_mut((R * inputs).max(1)).take(blocks).enumerate() {
            pack_rows::<R>(|row| &a[(block * R + row).min(rows - 1) * stride..][..inputs], to);
        }
        let (vectors, _) = S::as_simd_f32s(panels);
        for (number, panel) in
            vectors.chunks_exact(VECTORS * inputs).enumerate().take(taken.end).skip(taken.start)
        {
            let column = number * panel_width;
            for from in (0..inputs).step_by(DEPTH) {
                let to = (from + DEPTH).min(inputs);
                let right = &panel[VECTORS * from..VECTORS * to];
                // What is multiplied next lies far: with every block of rows a tile of it is asked for.
                let next = panels.lines_from((number * inputs + to) * panel_width);
                let each = next.len().min(DEPTH * panel_width / Line::of::<f32>()).div_ceil(blocks);
                for (block, left) in left.chunks_exact(R * inputs).take(blocks).enumerate() {
                    let next = next.get(block * each..).unwrap_or_default();
                    let next = &next[..each.min(next.len())];
                    let values = &mut sums[block * R * panel_width..][..R * panel_width];
                    let (sums, _) = S::as_mut_simd_f32s(values).0.as_chunks_mut::<VECTORS>();
                    let Some(sums) = sums.first_chunk_mut::<R>() else { continue };
                    let before = if from == 0 { [[simd.splat_f32s(0.0); VECTORS]; R] } else { *sums };
                    *sums = products::<S, R>(simd, before, &left[R * from..R * to], right, next);
                    if to == inputs {
                        let (row, columns) = (block * R, panel_width.min(outputs - column));
                        epilogue.store(OutputTile {
                            row,
                            column,
                            rows: R.min(rows - row),
                            columns,
                            values,
                            panel_width,
                        });
                    }
                }
            }
        }
    }
}

/// Rows as the kernel reads them: the first number of each, then the second of each.
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

/// `N` of the rows, in squares that the compiler turns in registers.
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

/// `sums + left · panel`; meanwhile the lines of `next` are asked for, a few at a time.
#[inline(always)]
fn products<S: Simd, const R: usize>(
    simd: S,
    mut sums: [[S::f32s; VECTORS]; R],
    left: &[f32],
    panel: &[S::f32s],
    next: &[Line],
) -> [[S::f32s; VECTORS]; R] {
    let mut next = next.chunks((next.len() * PREFETCH_STEP).div_ceil(DEPTH).max(1));
    let left = left.as_chunks::<R>().0.chunks(PREFETCH_STEP);
    for (right, left) in panel.as_chunks::<VECTORS>().0.chunks(PREFETCH_STEP).zip(left) {
        next.next().unwrap_or_default().iter().for_each(Line::fetch);
        for (right, left) in right.iter().zip(left) {
            for (sums, x) in sums.iter_mut().zip(left) {
                let x = simd.splat_f32s(*x);
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = simd.mul_add_e_f32s(x, *right, *sum);
                }
            }
        }
    }
    sums
}
