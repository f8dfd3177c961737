//! Activations in panels: 32 columns side by side, their rows one after the other on whole cache lines. A tile of
//! any rows is then one run of memory, and so is a finished block of a product.

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

/// Some neighbouring panels of a matrix, for one writer.
pub struct PanelsMut<'a, T> {
    values: &'a mut [T],
    first: usize,
    height: usize,
}

impl<'a, T: Number> PanelsMut<'a, T> {
    /// How many panels the matrix has up to the last of these.
    pub(super) fn end(&self) -> usize {
        self.first + self.values.len() / (self.height * STEP)
    }

    /// Rows that a panel has room for.
    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// One panel from `row` on.
    #[inline(always)]
    pub(super) fn rows_from(&mut self, panel: usize, row: usize) -> &mut [T] {
        let panel = panel - self.first;
        &mut self.values[(panel * self.height + row) * STEP..(panel + 1) * self.height * STEP]
    }

    /// Those before `panel`, and the others.
    pub(super) fn split(self, panel: usize) -> (PanelsMut<'a, T>, PanelsMut<'a, T>) {
        let PanelsMut { values, first, height } = self;
        let (left, right) = values.split_at_mut((panel - first) * height * STEP);
        (PanelsMut { values: left, first, height }, PanelsMut { values: right, first: panel, height })
    }
}

impl<T: Number> Panels<T> {
    /// All panels, to be written.
    pub fn all(&mut self) -> PanelsMut<'_, T> {
        let values = &mut self.values[..self.count * self.height * STEP];
        PanelsMut { values, first: 0, height: self.height }
    }

    /// Room for `rows` rows of `columns`, and for the 32 rows behind them that tiles may read. What stands there is
    /// whatever stood there before.
    pub fn shape(&mut self, rows: usize, columns: usize) {
        // Panels lie an odd number of half-kilolines apart, so that the same rows of two panels share no cache set.
        let height = (rows + STEP).next_multiple_of(STEP);
        self.height = if height.is_multiple_of(2 * STEP) { height + STEP } else { height };
        self.count = columns.div_ceil(STEP);
        let values = self.count.checked_mul(self.height).and_then(|rows| rows.checked_mul(STEP));
        self.values.grow(values.unwrap_or(usize::MAX));
    }

    /// Bytes of memory that they hold.
    pub fn bytes(&self) -> usize {
        self.values.bytes()
    }

    /// How many panels there are.
    pub fn panels(&self) -> usize {
        self.count
    }

    /// Rows that a panel has room for.
    pub(super) fn height(&self) -> usize {
        self.height
    }

    /// One panel from `row` on.
    #[inline(always)]
    pub(super) fn rows_from(&self, panel: usize, row: usize) -> &[T] {
        &self.values[(panel * self.height + row) * STEP..(panel + 1) * self.height * STEP]
    }

    /// One panel from `row` on.
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

    /// Writes a row; behind `values` it is zero.
    pub fn set(&mut self, row: usize, values: &[T]) {
        let mut left = values;
        for panel in 0..self.count {
            let to = &mut self.rows_from_mut(panel, row)[..STEP];
            let (now, later) = left.split_at(left.len().min(STEP));
            to[..now.len()].copy_from_slice(now);
            to[now.len()..].fill(T::default());
            left = later;
        }
    }

    /// Reads the first values of a row.
    pub fn get(&self, row: usize, to: &mut [T]) {
        for (panel, to) in to.chunks_mut(STEP).enumerate() {
            to.copy_from_slice(&self.rows_from(panel, row)[..to.len()]);
        }
    }
}
