//! Products of rows of 8 bits with AVX-512 VNNI, some rows at a time.

use std::arch::x86_64::__m512;
use std::ops::Range;

use super::PANEL;
use super::avx512::values;
use super::instructions::has_vectors;
use super::panel::Panel;
use super::rows::{BlockRows, QuantizedBlock, SomeRows};
use crate::isa::Isa;

/// Blocks of 8 bits, multiplied with vectors.
pub(super) trait ByteProducts: QuantizedBlock {
    /// The products of `R` rows with a panel. A row has the same result for every `R`.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW, VL and VNNI.
    unsafe fn products<const R: usize>(panel: &Panel<'_>, rows: SomeRows<'_, R, Self>) -> [__m512; R];
}

/// Multiplies some rows with a panel, if there are instructions for it. The first row begins a tile.
pub(super) fn multiply<B: ByteProducts>(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &BlockRows<B>,
    part: Range<usize>,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) -> bool {
    if !has_vectors(isa) {
        return false;
    }
    let mut first = part.start;
    while first < part.end {
        // SAFETY: the processor has these instructions.
        unsafe {
            match part.end - first {
                8.. => some_rows::<8, B>(panel, rows, &mut first, put),
                4.. => some_rows::<4, B>(panel, rows, &mut first, put),
                2.. => some_rows::<2, B>(panel, rows, &mut first, put),
                _ => some_rows::<1, B>(panel, rows, &mut first, put),
            }
        }
    }
    true
}

/// Multiplies the next `R` rows with a panel.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn some_rows<const R: usize, B: ByteProducts>(
    panel: &Panel<'_>,
    rows: &BlockRows<B>,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    // SAFETY: this function has these instructions.
    for sums in unsafe { B::products::<R>(panel, rows.some(*first)) } {
        put(*first, &values(sums));
        *first += 1;
    }
}
