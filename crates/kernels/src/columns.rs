//! Columns of a row-major matrix, which several threads may write at the same time.

use std::marker::PhantomData;
use std::ops::Range;

/// Some columns of all rows of a row-major matrix, with exclusive access.
pub struct ColumnsMut<'a> {
    /// The first column of the first row.
    start: *mut f32,
    rows: usize,
    stride: usize,
    columns: Range<usize>,
    values: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is a mutable borrow of its columns, and no other `ColumnsMut` has any of them.
unsafe impl Send for ColumnsMut<'_> {}

impl<'a> ColumnsMut<'a> {
    /// All columns of a matrix whose rows have `stride` values.
    pub fn new(values: &'a mut [f32], stride: usize) -> ColumnsMut<'a> {
        let rows = values.len().checked_div(stride).unwrap_or(0);
        ColumnsMut { start: values.as_mut_ptr(), rows, stride, columns: 0..stride, values: PhantomData }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns, which count from the first column of the matrix.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// Splits before column `column`, which counts from the first column of the matrix.
    #[must_use]
    pub fn split(self, column: usize) -> (ColumnsMut<'a>, ColumnsMut<'a>) {
        let ColumnsMut { start, rows, stride, columns, values } = self;
        assert!((columns.start..=columns.end).contains(&column), "column {column} of {columns:?}");
        let part = |columns: Range<usize>| ColumnsMut { start, rows, stride, columns, values };
        (part(columns.start..column), part(column..columns.end))
    }

    /// Columns of a row. They count from the first column of the matrix.
    #[inline(always)]
    pub fn row(&mut self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(row < self.rows && columns.start <= columns.end);
        assert!(self.columns.start <= columns.start && columns.end <= self.columns.end);
        // SAFETY: the matrix has this row and these columns, and they are this borrow's alone.
        unsafe {
            let start = self.start.add(row * self.stride + columns.start);
            std::slice::from_raw_parts_mut(start, columns.end - columns.start)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_columns_of_their_own() {
        let mut values = vec![0.0; 35];
        let (mut left, rest) = ColumnsMut::new(&mut values, 7).split(3);
        let (mut middle, mut right) = rest.split(4);
        std::thread::scope(|scope| {
            for (part, columns) in [(&mut left, 0..3), (&mut middle, 3..4), (&mut right, 4..7)] {
                scope.spawn(move || {
                    for row in 0..part.rows() {
                        for (column, x) in columns.clone().zip(part.row(row, columns.clone())) {
                            *x = (7 * row + column) as f32;
                        }
                    }
                });
            }
        });
        assert_eq!(values, (0..35).map(|at| at as f32).collect::<Vec<_>>());
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn columns_of_another_part_are_refused() {
        let mut values = vec![0.0; 35];
        let (mut left, _right) = ColumnsMut::new(&mut values, 7).split(3);
        left.row(0, 2..4);
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_row_after_the_last_one_is_refused() {
        ColumnsMut::new(&mut [0.0; 14], 7).row(2, 0..1);
    }
}
