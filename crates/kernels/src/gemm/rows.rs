//! Rows packed for products: blocks of a few rows, interleaved.

use pulp::{Simd, WithSimd};

use crate::buffer::Buffer;
use crate::isa::Isa;
use crate::team::Team;

/// Rows per block with 32 and with 16 vector registers.
pub(super) const ROWS_WITH_32_REGISTERS: usize = 12;
pub(super) const ROWS_WITH_16_REGISTERS: usize = 6;
/// Rows per block of one or two rows.
pub(super) const FEW_ROWS: usize = 2;
/// Values that a thread packs at a time.
const PART: usize = 1 << 14;

/// Packed rows, reused between products. All panels of all matrices with these inputs take them.
#[derive(Default)]
pub struct PackedRows {
    values: Buffer<f32>,
    inputs: usize,
    rows: usize,
    /// Rows per block.
    height: usize,
}

impl PackedRows {
    /// Packs `rows` rows of `inputs` values, `stride` apart, with the threads of a team.
    pub fn pack(&mut self, (isa, team): (Isa, &Team), rows: (&[f32], usize, usize), inputs: usize) {
        let values = if team.count() == 1 { usize::MAX } else { PART };
        team.each(self.parts(isa, rows, inputs, values), |part| isa.dispatch(part));
    }

    /// The same on the calling thread.
    pub(super) fn pack_alone(&mut self, isa: Isa, rows: (&[f32], usize, usize), inputs: usize) {
        self.parts(isa, rows, inputs, usize::MAX).for_each(|part| isa.dispatch(part));
    }

    /// The work of packing rows, in parts of about `values` values.
    fn parts<'a>(
        &'a mut self,
        isa: Isa,
        (a, stride, rows): (&'a [f32], usize, usize),
        inputs: usize,
        values: usize,
    ) -> impl Iterator<Item = Pack<'a>> {
        assert!(stride >= inputs && a.len() >= rows * stride);
        let height = if rows <= FEW_ROWS { FEW_ROWS } else { isa.dispatch(Height) };
        let (blocks, size) = (rows.div_ceil(height), (height * inputs).max(1));
        self.values.grow(blocks * size);
        (self.inputs, self.rows, self.height) = (inputs, rows, height);
        let each = values.div_ceil(size).clamp(1, blocks.max(1));
        let parts = self.values[..blocks * size].chunks_mut(each * size).enumerate();
        parts.map(move |(part, to)| Pack {
            rows: (a, stride, rows),
            inputs,
            first: part * each * height,
            height,
            to,
        })
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.values.bytes()
    }

    /// Number of rows.
    pub(super) fn count(&self) -> usize {
        self.rows
    }

    /// The blocks of `R` rows of `inputs` values each.
    #[inline(always)]
    pub(super) fn blocks<const R: usize>(&self, inputs: usize) -> impl Iterator<Item = &[[f32; R]]> + Clone {
        assert!(self.height == R && self.inputs == inputs, "rows of another shape");
        let blocks = self.values.chunks_exact((R * inputs).max(1)).take(self.rows.div_ceil(R));
        blocks.map(|block| block.as_chunks().0)
    }
}

/// The number of rows per block.
struct Height;

impl WithSimd for Height {
    type Output = usize;

    fn with_simd<S: Simd>(self, _: S) -> usize {
        if S::REGISTER_COUNT >= 32 { ROWS_WITH_32_REGISTERS } else { ROWS_WITH_16_REGISTERS }
    }
}

/// Packs blocks from row `first` on.
struct Pack<'a> {
    rows: (&'a [f32], usize, usize),
    inputs: usize,
    first: usize,
    height: usize,
    to: &'a mut [f32],
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.height {
            FEW_ROWS => self.run::<FEW_ROWS>(),
            ROWS_WITH_16_REGISTERS => self.run::<ROWS_WITH_16_REGISTERS>(),
            _ => self.run::<ROWS_WITH_32_REGISTERS>(),
        }
    }
}

impl Pack<'_> {
    #[inline(always)]
    fn run<const R: usize>(self) {
        let Pack { rows: (a, stride, rows), inputs, first, to, .. } = self;
        for (block, to) in to.chunks_exact_mut((R * inputs).max(1)).enumerate() {
            // The last row fills up the last block.
            let row = |row: usize| &a[(first + block * R + row).min(rows - 1) * stride..][..inputs];
            interleave::<R>(row, to.as_chunks_mut().0);
        }
    }
}

/// The first value of each row, then the second of each.
#[inline(always)]
fn interleave<'a, const R: usize>(row: impl Fn(usize) -> &'a [f32], to: &mut [[f32; R]]) {
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
