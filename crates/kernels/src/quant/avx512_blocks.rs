//! Products of rows of 8 bits with super-blocks, with AVX-512 VNNI. The product of a super-block is an integer, so it does not
//! matter in which order its groups are added: tiles compute the same.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_dpwssd_epi32,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_mullo_epi32, _mm512_or_si512, _mm512_set1_epi32,
    _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32, _mm512_sub_epi32,
};

use super::avx512::{add_rows, block_factors, prefetch_after, signed, unsigned, vectors};
use super::avx512_rows::ByteProducts;
use super::codes::ByteBlock;
use super::format::CodeWidth;
use super::panel::Panel;
use super::rows::SomeRows;
use super::{BLOCK, GROUP, RUN};

/// Groups of the formats with the most of them per super-block.
const MOST_GROUPS: usize = BLOCK / RUN;

impl ByteProducts for ByteBlock {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn products<const R: usize>(panel: &Panel<'_>, rows: SomeRows<'_, R, ByteBlock>) -> [__m512; R] {
        const SIX: usize = CodeWidth::Six.run_bytes();
        const EIGHT: usize = CodeWidth::Eight.run_bytes();
        match (panel.format.width, panel.format.group) {
            (CodeWidth::Four, _) => products::<R, { CodeWidth::Four.run_bytes() }, 8>(panel, rows),
            (CodeWidth::Six, GROUP) => products::<R, SIX, 8>(panel, rows),
            (CodeWidth::Six, _) => products::<R, SIX, 16>(panel, rows),
            (CodeWidth::Eight, GROUP) => products::<R, EIGHT, 8>(panel, rows),
            (CodeWidth::Eight, _) => products::<R, EIGHT, 16>(panel, rows),
        }
    }
}

/// The products of `R` rows with a panel whose runs have `BYTES` bytes, and whose super-blocks have `COUNT` groups.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn products<const R: usize, const BYTES: usize, const COUNT: usize>(
    panel: &Panel<'_>,
    rows: SomeRows<'_, R, ByteBlock>,
) -> [__m512; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let runs = panel.codes.as_chunks::<BYTES>().0.chunks_exact(BLOCK / RUN);
    for (block, runs) in runs.enumerate() {
        let rows = rows.block(block);
        let mut totals = [_mm512_setzero_si512(); R];
        for (group, runs) in runs.chunks_exact(BLOCK / RUN / COUNT).enumerate() {
            let mut dots = [_mm512_setzero_si512(); R];
            for (run, codes) in runs.iter().enumerate() {
                prefetch_after(codes);
                let first = (group * (BLOCK / COUNT) + run * RUN) / 4;
                let vectors = vectors(codes);
                add(&mut dots, vectors[0], rows, first);
                add(&mut dots, vectors[1], rows, first + 1);
                add(&mut dots, vectors[2], rows, first + 2);
                add(&mut dots, vectors[3], rows, first + 3);
            }
            let scale = signed(panel.group_scales, block * COUNT + group);
            for (total, dots) in totals.iter_mut().zip(dots) {
                *total = _mm512_add_epi32(*total, _mm512_mullo_epi32(dots, scale));
            }
        }
        let factors = Factors::<COUNT>::of(panel, block);
        for ((sum, total), row) in sums.iter_mut().zip(totals).zip(rows) {
            *sum = if panel.format.has_minimums {
                factors.add::<true>(total, row, *sum)
            } else {
                factors.add::<false>(factors.less_zero(total, row, panel.format.zero), row, *sum)
            };
        }
    }
    sums
}

/// Adds the products of codes with four inputs of each row.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn add<const R: usize>(dots: &mut [__m512i; R], codes: __m512i, rows: &[ByteBlock; R], word: usize) {
    let words = rows.as_ptr().cast::<i32>().wrapping_add(word);
    // SAFETY: there is a row for each dot product, and `words` points to four inputs of the first.
    unsafe { add_rows::<ByteBlock>(dots.iter_mut(), codes, words) };
}

/// The factors of a super-block of `COUNT` groups.
#[derive(Clone, Copy)]
pub(super) struct Factors<const COUNT: usize> {
    scale: __m512,
    minimum: __m512,
    /// The minimums of two groups each, or their scales without minimums, as integers of 16 bits.
    pairs: [__m512i; MOST_GROUPS / 2],
}

impl<const COUNT: usize> Factors<COUNT> {
    /// The factors of super-block `block`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    pub(super) fn of(panel: &Panel<'_>, block: usize) -> Factors<COUNT> {
        let [scale, minimum] = block_factors(panel, block);
        let mut pairs = [_mm512_setzero_si512(); MOST_GROUPS / 2];
        for (pair, to) in pairs.iter_mut().enumerate().take(COUNT / 2) {
            let group = block * COUNT + 2 * pair;
            let (first, second) = if panel.format.has_minimums {
                (unsigned(panel.group_minimums, group), unsigned(panel.group_minimums, group + 1))
            } else {
                (signed(panel.group_scales, group), signed(panel.group_scales, group + 1))
            };
            let first = _mm512_and_si512(first, _mm512_set1_epi32(0xffff));
            *to = _mm512_or_si512(_mm512_slli_epi32::<16>(second), first);
        }
        Factors { scale, minimum, pairs }
    }

    /// The sum of minimums, or of scales, times the sums of the codes of a row.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn of_sums(&self, row: &ByteBlock) -> __m512i {
        let sums: &[i32] = if COUNT == MOST_GROUPS { &row.half_sums } else { &row.sums };
        let mut total = _mm512_setzero_si512();
        for (pair, sums) in self.pairs.iter().zip(sums) {
            total = _mm512_dpwssd_epi32(total, *pair, _mm512_set1_epi32(*sums));
        }
        total
    }

    /// The sum of scales times products of codes less `zero`, from the sum with codes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn less_zero(&self, total: __m512i, row: &ByteBlock, zero: u8) -> __m512i {
        let by = _mm512_set1_epi32(i32::from(zero));
        _mm512_sub_epi32(total, _mm512_mullo_epi32(self.of_sums(row), by))
    }

    /// Adds the products of a row with a super-block to the sums of the row. `total` is the sum of scales times products of
    /// codes, less the code of zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    #[inline]
    pub(super) fn add<const MINIMUMS: bool>(&self, total: __m512i, row: &ByteBlock, sum: __m512) -> __m512 {
        let mut part = _mm512_mul_ps(self.scale, _mm512_cvtepi32_ps(total));
        if MINIMUMS {
            part = _mm512_fnmadd_ps(self.minimum, _mm512_cvtepi32_ps(self.of_sums(row)), part);
        }
        _mm512_fmadd_ps(part, _mm512_set1_ps(row.scale), sum)
    }
}
