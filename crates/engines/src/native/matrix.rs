//! Packed matrices that multiply rows of f32 values, with columns split over threads.

use rayon::prelude::*;
use sconce_kernels::gemm::{Epilogue, GemmScratch, PackedMatrix};
use sconce_kernels::isa::Isa;

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
        epilogue: &mut impl Epilogue,
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
        epilogue: &mut impl Epilogue,
    ) {
        let (panels, threads) = (self.panels(), rayon::current_num_threads());
        if threads == 1 {
            return PackedMatrix::multiply(self, a, stride, rows, scratch, epilogue);
        }
        let share = |n: usize| panels * n / threads..panels * (n + 1) / threads;
        let parts = (0..threads).into_par_iter().map(|n| self.multiply_columns(a, stride, rows, share(n)));
        parts.collect::<Vec<_>>().iter_mut().for_each(|part| part.drain(isa, epilogue));
    }
}
