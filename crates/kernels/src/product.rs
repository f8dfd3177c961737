//! Products in f32 with prepacked weights: a few rows times two vectors of columns at a time, all in registers.

use pulp::{Simd, WithSimd};

use crate::isa::Isa;
use crate::rows::Activation;

/// Vectors of columns taken together.
const WIDE: usize = 2;
/// Rows taken together where there are 32 registers, and where there are 16.
const ROWS_OF_32: usize = 12;
const ROWS_OF_16: usize = 6;
/// The widest panel of columns of any instruction set.
const MOST: usize = 32;

/// What becomes of a product: it is handed over in pieces of rows, while they are warm.
pub trait Epilogue {
    /// `values` are the columns from `column` on of `row`.
    fn take(&mut self, row: usize, column: usize, values: &mut [f32]);
}

impl<F: FnMut(usize, usize, &mut [f32])> Epilogue for F {
    #[inline(always)]
    fn take(&mut self, row: usize, column: usize, values: &mut [f32]) {
        self(row, column, values);
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
    fn take(&mut self, row: usize, column: usize, values: &mut [f32]) {
        let count = values.len();
        for (value, bias) in values.iter_mut().zip(&self.bias[column..column + count]) {
            *value += bias;
        }
        self.activation.apply(values);
        self.to[row * self.stride + column..][..count].copy_from_slice(values);
    }
}

/// Adds `product + bias` to rows.
pub struct AddTo<'a> {
    /// A summand a column.
    pub bias: &'a [f32],
    /// Rows `stride` apart.
    pub to: &'a mut [f32],
    /// See `to`.
    pub stride: usize,
}

impl Epilogue for AddTo<'_> {
    #[inline(always)]
    fn take(&mut self, row: usize, column: usize, values: &mut [f32]) {
        let count = values.len();
        let to = &mut self.to[row * self.stride + column..][..count];
        for ((to, value), bias) in to.iter_mut().zip(values.iter()).zip(&self.bias[column..column + count]) {
            *to += value + bias;
        }
    }
}

/// Weights `[outputs, inputs]`, packed in panels of columns as the kernel reads them.
pub struct Matrix {
    isa: Isa,
    inputs: usize,
    outputs: usize,
    wide: usize,
    panels: Vec<f32>,
}

impl Matrix {
    /// Packs `weights`, `[outputs, inputs]` row after row.
    pub fn pack(isa: Isa, weights: &[f32], outputs: usize, inputs: usize) -> Matrix {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        let wide = WIDE * isa.dispatch(Lanes);
        let mut panels = vec![0.0; outputs.next_multiple_of(wide) * inputs];
        for (number, panel) in panels.chunks_exact_mut((wide * inputs).max(1)).enumerate() {
            for lane in 0..wide.min(outputs - number * wide) {
                let row = &weights[(number * wide + lane) * inputs..][..inputs];
                for (column, weight) in row.iter().enumerate() {
                    panel[column * wide + lane] = *weight;
                }
            }
        }
        Matrix { isa, inputs, outputs, wide, panels }
    }

    /// Numbers in.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Numbers out.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `a · weightsᵀ` for the rows of `a`, which are `stride` apart; `scratch` keeps its room between calls.
    pub fn multiply(
        &self,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut Vec<f32>,
        epilogue: &mut impl Epilogue,
    ) {
        assert!(stride >= self.inputs && a.len() >= rows * stride);
        self.isa.dispatch(Multiply { matrix: self, a, stride, rows, scratch, epilogue });
    }
}

struct Multiply<'a, E> {
    matrix: &'a Matrix,
    a: &'a [f32],
    stride: usize,
    rows: usize,
    scratch: &'a mut Vec<f32>,
    epilogue: &'a mut E,
}

impl<E: Epilogue> WithSimd for Multiply<'_, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 {
            self.run::<S, ROWS_OF_32>(simd);
        } else {
            self.run::<S, ROWS_OF_16>(simd);
        }
    }
}

impl<E: Epilogue> Multiply<'_, E> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        let Multiply { matrix, a, stride, rows, scratch, epilogue } = self;
        let Matrix { inputs, outputs, wide, panels, .. } = matrix;
        let (inputs, outputs, wide) = (*inputs, *outputs, *wide);
        pack_rows::<R>(a, stride, rows, inputs, scratch);
        let (vectors, _) = S::as_simd_f32s(panels);
        let mut piece = [[0.0f32; MOST]; R];
        for (number, panel) in vectors.chunks_exact(WIDE * inputs).enumerate() {
            let column = number * wide;
            let count = wide.min(outputs - column);
            for (block, left) in scratch.chunks_exact(R * inputs).enumerate() {
                let sums = products::<S, R>(simd, left, panel);
                for (piece, sums) in piece.iter_mut().zip(&sums) {
                    let (room, _) = S::as_mut_simd_f32s(&mut piece[..wide]);
                    room.copy_from_slice(sums);
                }
                let first = block * R;
                for (row, piece) in piece.iter_mut().enumerate().take(rows - first) {
                    epilogue.take(first + row, column, &mut piece[..count]);
                }
            }
        }
    }
}

/// The rows of `a` in blocks of `R`, each block column after column; missing rows are zero.
#[inline(always)]
fn pack_rows<const R: usize>(a: &[f32], stride: usize, rows: usize, inputs: usize, to: &mut Vec<f32>) {
    to.clear();
    to.resize(rows.next_multiple_of(R) * inputs, 0.0);
    for (block, to) in to.chunks_exact_mut(R * inputs).enumerate() {
        for row in 0..R.min(rows - block * R) {
            let from = &a[(block * R + row) * stride..][..inputs];
            for (to, x) in to.as_chunks_mut::<R>().0.iter_mut().zip(from) {
                to[row] = *x;
            }
        }
    }
}

#[inline(always)]
fn products<S: Simd, const R: usize>(simd: S, left: &[f32], panel: &[S::f32s]) -> [[S::f32s; WIDE]; R] {
    let mut sums = [[simd.splat_f32s(0.0); WIDE]; R];
    for (right, left) in panel.as_chunks::<WIDE>().0.iter().zip(left.as_chunks::<R>().0) {
        for (sums, x) in sums.iter_mut().zip(left) {
            let x = simd.splat_f32s(*x);
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = simd.mul_add_e_f32s(x, *right, *sum);
            }
        }
    }
    sums
}
