//! Activations in panels of 32 columns, row by row on whole cache lines. A tile of any rows is contiguous, and so is an
//! output block.

use crate::buffer::{Buffer, Number};

/// Columns of a panel; rows and columns of bf16 activations are padded to multiples of it.
pub const STEP: usize = 32;

/// A matrix in panels of 32 columns.
#[derive(Clone, Default)]
pub struct Panels<T> {
    values: Buffer<T>,
    count: usize,
    height: usize,
}

/// A range of panels with exclusive access.
pub struct PanelsMut<'a, T> {
    values: &'a mut [T],
    first: usize,
    height: usize,
}

impl<'a, T: Number> PanelsMut<'a, T> {
    /// Index after the last panel.
    pub(super) fn end(&self) -> usize {
        self.first + self.values.len() / (self.height * STEP)
    }

    /// Capacity of a panel in rows.
    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// The rows of `panel` from `row` on.
    #[inline(always)]
    pub(super) fn rows_from(&mut self, panel: usize, row: usize) -> &mut [T] {
        let panel = panel - self.first;
        &mut self.values[(panel * self.height + row) * STEP..(panel + 1) * self.height * STEP]
    }

    /// Splits the range before `panel`.
    pub(super) fn split(self, panel: usize) -> (PanelsMut<'a, T>, PanelsMut<'a, T>) {
        let PanelsMut { values, first, height } = self;
        let (left, right) = values.split_at_mut((panel - first) * height * STEP);
        (PanelsMut { values: left, first, height }, PanelsMut { values: right, first: panel, height })
    }
}

impl<T: Number> Panels<T> {
    /// All panels, mutable.
    pub fn all(&mut self) -> PanelsMut<'_, T> {
        let values = &mut self.values[..self.count * self.height * STEP];
        PanelsMut { values, first: 0, height: self.height }
    }

    /// Resizes to `rows` rows of `columns` columns, with 32 rows beyond them that tiles may read. The contents are
    /// unspecified.
    pub fn shape(&mut self, rows: usize, columns: usize) {
        // An odd number of half-kilolines between panels keeps the same rows of two panels in different cache sets.
        let height = (rows + STEP).next_multiple_of(STEP);
        self.height = if height.is_multiple_of(2 * STEP) { height + STEP } else { height };
        self.count = columns.div_ceil(STEP);
        let values = self.count.checked_mul(self.height).and_then(|rows| rows.checked_mul(STEP));
        self.values.grow(values.unwrap_or(usize::MAX));
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        self.values.bytes()
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.count
    }

    /// Capacity of a panel in rows.
    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// The rows of `panel` from `row` on.
    #[inline(always)]
    pub(super) fn rows_from(&self, panel: usize, row: usize) -> &[T] {
        &self.values[(panel * self.height + row) * STEP..(panel + 1) * self.height * STEP]
    }

    /// The rows of `panel` from `row` on.
    #[inline(always)]
    pub(super) fn rows_from_mut(&mut self, panel: usize, row: usize) -> &mut [T] {
        &mut self.values[(panel * self.height + row) * STEP..(panel + 1) * self.height * STEP]
    }

    /// One row of one panel.
    #[inline(always)]
    pub(super) fn row(&self, panel: usize, row: usize) -> &[T; STEP] {
        &self.rows_from(panel, row).as_chunks().0[0]
    }

    /// One row of one panel.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, panel: usize, row: usize) -> &mut [T; STEP] {
        &mut self.rows_from_mut(panel, row).as_chunks_mut().0[0]
    }

    /// Writes a row, padded with zeros.
    pub fn set(&mut self, row: usize, values: &[T]) {
        self.put(row, values);
        for panel in values.len().div_ceil(STEP)..self.count {
            *self.row_mut(panel, row) = [T::default(); STEP];
        }
    }

    /// Writes the first values of a row, padded with zeros to a whole panel.
    pub fn put(&mut self, row: usize, values: &[T]) {
        // Copies of a known length are vectors; others are calls.
        let (whole, rest) = values.as_chunks();
        for (panel, values) in whole.iter().enumerate() {
            *self.row_mut(panel, row) = *values;
        }
        if !rest.is_empty() {
            let to = self.row_mut(whole.len(), row);
            to[..rest.len()].copy_from_slice(rest);
            to[rest.len()..].fill(T::default());
        }
    }

    /// Reads the first values of a row.
    pub fn get(&self, row: usize, to: &mut [T]) {
        self.get_from(0, row, to);
    }

    /// Reads values of a row from a panel on.
    pub fn get_from(&self, panel: usize, row: usize, to: &mut [T]) {
        let (whole, rest) = to.as_chunks_mut();
        let end = panel + whole.len();
        whole.iter_mut().zip(panel..).for_each(|(to, panel)| *to = *self.row(panel, row));
        if !rest.is_empty() {
            rest.copy_from_slice(&self.row(end, row)[..rest.len()]);
        }
    }
}
