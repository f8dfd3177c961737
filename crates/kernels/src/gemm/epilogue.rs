//! What happens to the output of a GEMM while it is in cache: it is stored or added, with a bias.

use crate::columns::ColumnsMut;
use crate::isa::{Isa, Vectorized};
use crate::rows::{Activation, LANES, copy};

/// The epilogue of a GEMM: receives each output tile while it is in cache.
pub trait Epilogue {
    /// Stores a tile with code for an instruction set.
    fn store(&mut self, isa: Isa, tile: OutputTile<'_>);
}

/// An epilogue whose columns can be split over threads.
pub trait SplitEpilogue: Epilogue + Send + Sized {
    /// Splits before column `column`, which counts from the first column of the output.
    #[must_use]
    fn split_columns(self, column: usize) -> (Self, Self);
}

/// A tile of the output.
#[derive(Debug)]
pub struct OutputTile<'a> {
    /// First row.
    pub row: usize,
    /// First column.
    pub column: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// The rows, each padded with zeros to `panel_width`.
    pub values: &'a mut [f32],
    /// Columns of a row of `values`.
    pub panel_width: usize,
}

impl OutputTile<'_> {
    /// Each row's index and values.
    #[inline(always)]
    fn rows(&mut self) -> impl Iterator<Item = (usize, &mut [f32])> {
        let columns = self.columns;
        let rows = self.values.chunks_exact_mut(self.panel_width).take(self.rows);
        (self.row..).zip(rows.map(move |row| &mut row[..columns]))
    }
}

/// Calls the closure for each row of each tile: row, first column, values.
impl<F: FnMut(usize, usize, &mut [f32])> Epilogue for F {
    fn store(&mut self, isa: Isa, tile: OutputTile<'_>) {
        struct Rows<'a, F>(&'a mut F, OutputTile<'a>);
        impl<F: FnMut(usize, usize, &mut [f32])> Vectorized for Rows<'_, F> {
            #[inline(always)]
            fn run(mut self) {
                let column = self.1.column;
                self.1.rows().for_each(|(row, values)| self.0(row, column, values));
            }
        }
        isa.run(Rows(self, tile));
    }
}

/// Stores what `join` makes of each value before and the sum of two others.
#[inline(always)]
fn add(to: &mut [f32], [values, bias]: [&[f32]; 2], join: impl Fn(f32, f32) -> f32) {
    let (vectors, rest) = to.as_chunks_mut::<LANES>();
    let ((values, values_rest), (bias, bias_rest)) = (values.as_chunks::<LANES>(), bias.as_chunks::<LANES>());
    for ((to, values), bias) in vectors.iter_mut().zip(values).zip(bias) {
        *to = std::array::from_fn(|lane| join(to[lane], values[lane] + bias[lane]));
    }
    for ((to, value), bias) in rest.iter_mut().zip(values_rest).zip(bias_rest) {
        *to = join(*to, value + bias);
    }
}

/// Stores `activation(output + bias)`.
pub struct Store<'a> {
    /// Bias per column.
    pub bias: &'a [f32],
    /// Activation.
    pub activation: Activation,
    /// Destination.
    pub to: ColumnsMut<'a>,
}

impl Epilogue for Store<'_> {
    fn store(&mut self, isa: Isa, tile: OutputTile<'_>) {
        isa.run(StoreTile(self, tile));
    }
}

struct StoreTile<'a, 'b>(&'a mut Store<'b>, OutputTile<'a>);

impl Vectorized for StoreTile<'_, '_> {
    #[inline(always)]
    fn run(self) {
        let StoreTile(Store { bias, activation, to }, mut tile) = self;
        let columns = tile.column..tile.column + tile.columns;
        let bias = &bias[columns.clone()];
        if *activation == Activation::Identity {
            for (row, values) in tile.rows() {
                add(to.row(row, columns.clone()), [values, bias], |_, sum| sum);
            }
            return;
        }
        for (_, values) in tile.rows() {
            values.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        // All values at once: the activation has long latency, and this overlaps many.
        activation.apply(tile.values);
        for (row, values) in tile.rows() {
            copy(values, to.row(row, columns.clone()));
        }
    }
}

impl SplitEpilogue for Store<'_> {
    fn split_columns(self, column: usize) -> (Self, Self) {
        let Store { bias, activation, to } = self;
        let (left, right) = to.split(column);
        (Store { bias, activation, to: left }, Store { bias, activation, to: right })
    }
}

/// Adds `output + bias` to the destination.
pub struct Accumulate<'a> {
    /// Bias per column.
    pub bias: &'a [f32],
    /// Destination.
    pub to: ColumnsMut<'a>,
}

impl Epilogue for Accumulate<'_> {
    fn store(&mut self, isa: Isa, tile: OutputTile<'_>) {
        isa.run(AccumulateTile(self, tile));
    }
}

struct AccumulateTile<'a, 'b>(&'a mut Accumulate<'b>, OutputTile<'a>);

impl Vectorized for AccumulateTile<'_, '_> {
    #[inline(always)]
    fn run(self) {
        let AccumulateTile(Accumulate { bias, to }, mut tile) = self;
        let columns = tile.column..tile.column + tile.columns;
        let bias = &bias[columns.clone()];
        for (row, values) in tile.rows() {
            add(to.row(row, columns.clone()), [values, bias], |before, sum| before + sum);
        }
    }
}

impl SplitEpilogue for Accumulate<'_> {
    fn split_columns(self, column: usize) -> (Self, Self) {
        let Accumulate { bias, to } = self;
        let (left, right) = to.split(column);
        (Accumulate { bias, to: left }, Accumulate { bias, to: right })
    }
}
