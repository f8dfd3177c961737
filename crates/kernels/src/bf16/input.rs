//! The left operand of a GEMM.

use super::Tiles;
use super::panels::{Panels, STEP};

/// The rows that a GEMM multiplies with weights.
#[derive(Clone, Copy)]
pub struct InputBf16<'a> {
    /// The tiles of this thread.
    pub tiles: &'a Tiles,
    /// The values, a multiple of 32 rows.
    pub a: &'a Panels<u16>,
    /// How many rows are multiplied.
    pub rows: usize,
}

impl InputBf16<'_> {
    /// Whether the rows are there up to a multiple of 32, with `inputs` values each.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only tiles and vectors read them"))]
    pub(super) fn holds(&self, inputs: usize) -> bool {
        self.a.panels() * STEP >= inputs && self.a.height() >= self.rows.next_multiple_of(STEP)
    }
}
