//! Tiles without AMX: accumulators in memory, multiplied with AVX-512 bf16 dot products.

use std::arch::x86_64::{
    __m512bh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_storeu_ps,
};
use std::cell::UnsafeCell;
use std::mem::transmute;

/// Rows whose accumulators are in registers.
const ROWS: usize = 8;
/// Rows of a tile.
const TILE: usize = 16;

/// Four accumulator tiles: 32 rows by 32 columns.
#[repr(align(64))]
pub(super) struct Sums(UnsafeCell<[[f32; 2 * TILE]; 2 * TILE]>);

impl Default for Sums {
    fn default() -> Sums {
        Sums(UnsafeCell::new([[0.0; 2 * TILE]; 2 * TILE]))
    }
}

impl Sums {
    /// Sets all accumulators to zero.
    pub(super) fn zero(&self) {
        // SAFETY: the cell stays on one thread, and no reference into it outlives a call.
        unsafe { *self.0.get() = [[0.0; 2 * TILE]; 2 * TILE] };
    }

    /// Loads the accumulators of the first `tiles` tiles of rows.
    ///
    /// # Safety
    /// `from` leads 16 rows of 128 bytes for each of them, `stride` bytes apart.
    pub(super) unsafe fn load(&self, from: *const f32, stride: usize, tiles: usize) {
        // SAFETY: the caller guarantees `from`; the cell stays on one thread.
        unsafe {
            let sums = &mut *self.0.get();
            for (row, sums) in sums.iter_mut().enumerate().take(tiles * TILE) {
                from.byte_add(row * stride).copy_to_nonoverlapping(sums.as_mut_ptr(), 2 * TILE);
            }
        }
    }

    /// Multiplies one or two tiles of rows by two tiles of columns and accumulates.
    ///
    /// # Safety
    /// Each of `rows` leads 16 rows of 64 bytes, `stride` bytes apart; each of `columns` 1024 bytes. The processor
    /// has vectors of bf16 pairs.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    pub(super) unsafe fn add(&self, rows: &[*const u16], stride: usize, columns: [*const u16; 2]) {
        let sums = self.0.get().cast::<f32>();
        for (tile, rows) in rows.iter().enumerate() {
            for first in (0..TILE).step_by(ROWS) {
                // SAFETY: the caller guarantees rows and columns; the sums are ours, 32 rows of 32.
                unsafe {
                    let to = sums.add((tile * TILE + first) * 2 * TILE);
                    let mut kept = [[_mm512_setzero_ps(); 2]; ROWS];
                    for (row, kept) in kept.iter_mut().enumerate() {
                        *kept = [0, TILE].map(|half| _mm512_loadu_ps(to.add(row * 2 * TILE + half)));
                    }
                    for pair in 0..TILE {
                        let weights: [__m512bh; 2] = columns
                            .map(|column| transmute(_mm512_loadu_si512(column.add(pair * 2 * TILE).cast())));
                        for (row, kept) in kept.iter_mut().enumerate() {
                            let pair_values = rows.byte_add((first + row) * stride).add(2 * pair);
                            let pair_values = pair_values.cast::<[u16; 2]>().read_unaligned();
                            let pair_values: __m512bh =
                                transmute(_mm512_set1_epi32(transmute::<[u16; 2], i32>(pair_values)));
                            kept[0] = _mm512_dpbf16_ps(kept[0], pair_values, weights[0]);
                            kept[1] = _mm512_dpbf16_ps(kept[1], pair_values, weights[1]);
                        }
                    }
                    for (row, kept) in kept.iter().enumerate() {
                        _mm512_storeu_ps(to.add(row * 2 * TILE), kept[0]);
                        _mm512_storeu_ps(to.add(row * 2 * TILE + TILE), kept[1]);
                    }
                }
            }
        }
    }

    /// Stores the accumulators of the first `tiles` tiles of rows.
    ///
    /// # Safety
    /// `to` leads 16 rows of 128 bytes for each of them, `stride` bytes apart.
    pub(super) unsafe fn store(&self, to: *mut f32, stride: usize, tiles: usize) {
        // SAFETY: the caller guarantees `to`; the cell stays on one thread.
        unsafe {
            let sums = &*self.0.get();
            for (row, sums) in sums.iter().enumerate().take(tiles * TILE) {
                to.byte_add(row * stride).copy_from_nonoverlapping(sums.as_ptr(), 2 * TILE);
            }
        }
    }
}
