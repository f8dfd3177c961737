//! Packed matrices that multiply rows of f32 values, with columns split over threads.

use rayon::prelude::*;
use sconce_kernels::gemm::{ColumnBlock, GemmScratch, OutputTile, PackedMatrix, SplitEpilogue};
use sconce_kernels::isa::Isa;
use sconce_kernels::rows::{Activation, gate};

/// Rows that a thread processes at a time.
const ROWS: usize = 32;

/// A packed matrix.
pub(super) trait Matrix: Sync {
    /// Multiplies `rows` rows of `a`, `stride` apart. Columns are split over the threads of the pool: a single block is
    /// bound by memory bandwidth.
    fn multiply(
        &self,
        isa: Isa,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut GemmScratch,
        epilogue: impl SplitEpilogue,
    );
}

impl Matrix for PackedMatrix {
    fn multiply(
        &self,
        isa: Isa,
        a: &[f32],
        stride: usize,
        rows: usize,
        scratch: &mut GemmScratch,
        mut epilogue: impl SplitEpilogue,
    ) {
        let (panels, threads) = (self.panels(), rayon::current_num_threads());
        if threads == 1 {
            return PackedMatrix::multiply(self, a, stride, rows, scratch, &mut epilogue);
        }
        let share = |n: usize| panels * n / threads..panels * (n + 1) / threads;
        let parts = (0..threads).into_par_iter().map(|n| self.multiply_columns(a, stride, rows, share(n)));
        store(isa, rows, parts.collect(), epilogue);
    }
}

/// Passes blocks of columns to an epilogue, with rows split over threads.
pub(super) fn store(isa: Isa, rows: usize, mut blocks: Vec<ColumnBlock>, mut epilogue: impl SplitEpilogue) {
    if rows <= ROWS {
        return blocks.iter_mut().flat_map(|block| block.tiles(rows)).for_each(|tile| {
            tile.store(isa, &mut epilogue);
        });
    }
    let count = rows.div_ceil(ROWS);
    let mut parts: Vec<Vec<OutputTile<'_>>> = (0..count).map(|_| Vec::new()).collect();
    for block in &mut blocks {
        parts.iter_mut().zip(block.tiles(ROWS)).for_each(|(part, tile)| part.push(tile));
    }
    let mut epilogues = Vec::with_capacity(count);
    for _ in 1..count {
        let first;
        (first, epilogue) = epilogue.split_rows(ROWS);
        epilogues.push(first);
    }
    epilogues.push(epilogue);
    parts.into_par_iter().zip(epilogues).for_each(|(tiles, mut epilogue)| {
        for tile in tiles {
            tile.store(isa, &mut epilogue);
        }
    });
}

/// Calls `work` with the index of a row and the rows from there on, with many rows split over threads. Rows have `width`
/// values.
pub(super) fn each_rows(values: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    if values.len() <= ROWS * width || rayon::current_num_threads() == 1 {
        return work(0, values);
    }
    values.par_chunks_mut(ROWS * width).enumerate().for_each(|(part, rows)| work(part * ROWS, rows));
}

/// `activation(gate) · up`, with many rows split over threads.
pub(super) fn gate_rows(isa: Isa, rows: &mut [f32], bias: &[f32], activation: Activation, to: &mut [f32]) {
    if rows.len() <= ROWS * bias.len() || rayon::current_num_threads() == 1 {
        return gate(isa, rows, bias, activation, to);
    }
    let parts = rows.par_chunks_mut(ROWS * bias.len()).zip(to.par_chunks_mut(ROWS * bias.len() / 2));
    parts.for_each(|(rows, to)| gate(isa, rows, bias, activation, to));
}
