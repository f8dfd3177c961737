//! Products with AVX-512 VNNI.

use std::arch::asm;
use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T1, _mm_loadu_si128, _mm_prefetch, _mm256_loadu_si256, _mm512_add_epi32,
    _mm512_and_si512, _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_loadu_si512, _mm512_mul_ps, _mm512_mullo_epi32,
    _mm512_or_si512, _mm512_set1_epi8, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srli_epi16, _mm512_storeu_ps,
};
use std::mem::offset_of;
use std::ops::Range;

use super::codes::RowBlock;
use super::format::{CodeWidth, QuantFormat};
use super::instructions::{has_tiles, has_vectors};
use super::panel::Panel;
use super::rows::{QuantizedRows, SomeRows};
use super::{BLOCK, GROUP, PANEL, RUN, VECTOR};
use crate::isa::Isa;

/// Distance in bytes at which codes are prefetched.
const PREFETCH: usize = 4096;

/// Multiplies some rows with a panel, if there are instructions for it. The first row begins a tile.
pub(super) fn multiply(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    part: Range<usize>,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) -> bool {
    if !has_vectors(isa) {
        return false;
    }
    let exact = panel.format.is_super() && has_tiles(isa);
    let mut first = part.start;
    while first < part.end {
        // SAFETY: the processor has these instructions.
        unsafe {
            match (exact, part.end - first) {
                (true, 4..) => some_rows::<4, true>(panel, rows, &mut first, put),
                (true, 2..) => some_rows::<2, true>(panel, rows, &mut first, put),
                (true, _) => some_rows::<1, true>(panel, rows, &mut first, put),
                (false, 8..) => some_rows::<8, false>(panel, rows, &mut first, put),
                (false, 4..) => some_rows::<4, false>(panel, rows, &mut first, put),
                (false, 2..) => some_rows::<2, false>(panel, rows, &mut first, put),
                (false, _) => some_rows::<1, false>(panel, rows, &mut first, put),
            }
        }
    }
    true
}

/// Multiplies the next `R` rows with a panel. A row has the same result for every `R`. If it is `EXACT`, super-blocks
/// are added as integers, as with tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn some_rows<const R: usize, const EXACT: bool>(
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    for sums in products::<R, EXACT>(panel, rows.some::<R>(*first)) {
        put(*first, &values(sums));
        *first += 1;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn products<const R: usize, const EXACT: bool>(panel: &Panel<'_>, rows: SomeRows<'_, R>) -> [__m512; R] {
    let mut sums = [_mm512_setzero_ps(); R];
    let mut factors = GroupFactors::from(panel, 0);
    let blocks = panel.codes.chunks(BLOCK / panel.format.group * panel.format.group_bytes());
    for (block, codes) in blocks.enumerate() {
        if EXACT {
            add_super_block(&mut sums, panel, codes, block, rows.block(block));
        } else {
            add_groups(&mut sums, &mut factors, codes, rows.block(block));
        }
    }
    sums
}

/// Adds the products of a super-block. The products of its groups are integers.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_super_block<const R: usize>(
    sums: &mut [__m512; R],
    panel: &Panel<'_>,
    codes: &[u8],
    block: usize,
    rows: &[RowBlock; R],
) {
    let format = panel.format;
    let mut totals = [BlockTotals::zeros(); R];
    for (group, codes) in codes.chunks_exact(format.group_bytes()).enumerate() {
        let dots = dots::<R, true>(format, codes, rows, group);
        let (scale, minimum) = super_factors(panel, block * format.groups + group);
        for ((totals, row), [high, low]) in totals.iter_mut().zip(rows).zip(dots) {
            totals.high = _mm512_add_epi32(totals.high, _mm512_mullo_epi32(high, scale));
            totals.low = _mm512_add_epi32(totals.low, _mm512_mullo_epi32(low, scale));
            let sum = _mm512_set1_ps(row.sum(format.group, group));
            totals.minimum = _mm512_fmadd_ps(minimum, sum, totals.minimum);
        }
    }
    let factors = block_factors(panel, block);
    for ((sum, totals), row) in sums.iter_mut().zip(totals).zip(rows) {
        *sum = totals.added_to(*sum, factors, row.scale);
    }
}

/// Adds the products of the groups of a block, each of which has its own factors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn add_groups<const R: usize>(
    sums: &mut [__m512; R],
    factors: &mut GroupFactors<'_>,
    codes: &[u8],
    rows: &[RowBlock; R],
) {
    let format = factors.panel.format;
    let mut totals = [_mm512_setzero_ps(); R];
    for (group, codes) in codes.chunks_exact(format.group_bytes()).enumerate() {
        let factors = factors.next();
        let dots = dots::<R, false>(format, codes, rows, group);
        for ((total, row), dots) in totals.iter_mut().zip(rows).zip(dots) {
            *total = add_group(*total, dots, factors, row.sum(format.group, group));
        }
    }
    for ((sum, total), row) in sums.iter_mut().zip(totals).zip(rows) {
        *sum = _mm512_fmadd_ps(total, _mm512_set1_ps(row.scale), *sum);
    }
}

/// Adds the products of a group to those of its block. `sum` is that of the row's codes.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_group(total: __m512, [high, low]: [__m512i; 2], [scale, minimum]: [__m512; 2], sum: f32) -> __m512 {
    let dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
    let total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, total);
    _mm512_fnmadd_ps(minimum, _mm512_set1_ps(sum), total)
}

/// The products of a row with a super-block, without the factors of the super-block.
#[derive(Clone, Copy)]
pub(super) struct BlockTotals {
    /// Sum of scales times dot products with high bytes.
    pub(super) high: __m512i,
    /// Sum of scales times dot products with low bytes.
    pub(super) low: __m512i,
    /// Sum of minimums times the sums of codes.
    pub(super) minimum: __m512,
}

impl BlockTotals {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn zeros() -> BlockTotals {
        let none = _mm512_setzero_si512();
        BlockTotals { high: none, low: none, minimum: _mm512_setzero_ps() }
    }

    /// Adds the products to the sums of a row. The factors are those of the super-block.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn added_to(self, sum: __m512, [scale, minimum]: [__m512; 2], row_scale: f32) -> __m512 {
        let (high, low) = (_mm512_cvtepi32_ps(self.high), _mm512_cvtepi32_ps(self.low));
        let part = _mm512_mul_ps(scale, _mm512_fmadd_ps(high, _mm512_set1_ps(256.0), low));
        let part = _mm512_fnmadd_ps(minimum, self.minimum, part);
        _mm512_fmadd_ps(part, _mm512_set1_ps(row_scale), sum)
    }
}

/// The integers of a group of a super-block: its scale and its minimum. Without minimums, the minimum is the scale.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn super_factors(panel: &Panel<'_>, group: usize) -> (__m512i, __m512) {
    let scale = signed(panel.group_scales, group);
    let minimum = if panel.format.has_minimums { unsigned(panel.group_minimums, group) } else { scale };
    (scale, _mm512_cvtepi32_ps(minimum))
}

/// The factors of a super-block: those of its scales and minimums. Without minimums, that of minimums is the scale times the
/// code of zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn block_factors(panel: &Panel<'_>, block: usize) -> [__m512; 2] {
    let scale = halves(panel.scales, block);
    let minimum = if panel.format.has_minimums {
        halves(panel.minimums, block)
    } else {
        _mm512_mul_ps(scale, _mm512_set1_ps(f32::from(panel.format.zero)))
    };
    [scale, minimum]
}

/// The scale and the minimum of each group of a panel, one after the other.
pub(super) struct GroupFactors<'a> {
    panel: &'a Panel<'a>,
    group: usize,
    /// Groups left in the super-block.
    left: usize,
    scale: __m512,
    minimum: __m512,
}

impl<'a> GroupFactors<'a> {
    /// Those of group `group` and the groups after it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    pub(super) fn from(panel: &'a Panel<'a>, group: usize) -> GroupFactors<'a> {
        let none = _mm512_setzero_ps();
        let mut factors = GroupFactors { panel, group, left: 0, scale: none, minimum: none };
        let skipped = group % panel.format.groups;
        if skipped > 0 {
            factors.load_block();
            factors.left = panel.format.groups - skipped;
        }
        factors
    }

    /// Loads the factors of the super-block.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    fn load_block(&mut self) {
        let (panel, block) = (self.panel, self.group / self.panel.format.groups);
        self.scale = halves(panel.scales, block);
        if panel.format.has_minimums {
            self.minimum = halves(panel.minimums, block);
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    #[inline]
    pub(super) fn next(&mut self) -> [__m512; 2] {
        let (panel, format) = (self.panel, self.panel.format);
        if self.left == 0 {
            self.load_block();
            self.left = format.groups;
        }
        self.left -= 1;
        let (mut scale, mut minimum) = (self.scale, self.minimum);
        if format.is_super() {
            scale = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(signed(panel.group_scales, self.group)));
        }
        if !format.has_minimums {
            minimum = _mm512_mul_ps(scale, _mm512_set1_ps(f32::from(format.zero)));
        } else if format.is_super() {
            let integers = _mm512_cvtepi32_ps(unsigned(panel.group_minimums, self.group));
            minimum = _mm512_mul_ps(minimum, integers);
        }
        self.group += 1;
        [scale, minimum]
    }
}

/// Dot products of the codes of group `group` with the high and the low bytes of each row. `EXACT` is that of the only caller,
/// into which it is inlined.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
fn dots<const R: usize, const EXACT: bool>(
    format: QuantFormat,
    codes: &[u8],
    rows: &[RowBlock; R],
    group: usize,
) -> [[__m512i; 2]; R] {
    let mut dots = [[_mm512_setzero_si512(); 2]; R];
    let first = group * format.group / 4;
    prefetch_after(codes);
    match format.width {
        CodeWidth::Four => add_runs::<R, { CodeWidth::Four.run_bytes() }>(&mut dots, codes, rows, first),
        CodeWidth::Six => add_runs::<R, { CodeWidth::Six.run_bytes() }>(&mut dots, codes, rows, first),
        CodeWidth::Eight => add_runs::<R, { CodeWidth::Eight.run_bytes() }>(&mut dots, codes, rows, first),
    }
    dots
}

/// Adds the products of a group, whose runs have `BYTES` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn add_runs<const R: usize, const BYTES: usize>(
    dots: &mut [[__m512i; 2]; R],
    codes: &[u8],
    rows: &[RowBlock; R],
    first: usize,
) {
    for (run, codes) in codes.as_chunks::<BYTES>().0.iter().enumerate().take(GROUP / RUN) {
        let first = first + run * RUN / 4;
        // Vectors that need no unpacking are loaded one by one: all at once take too many registers.
        if BYTES == CodeWidth::Eight.run_bytes() {
            for (at, codes) in codes.as_chunks::<VECTOR>().0.iter().enumerate() {
                add(dots, load(codes), rows, first + at);
            }
        } else {
            for (at, codes) in vectors(codes).into_iter().enumerate() {
                add(dots, codes, rows, first + at);
            }
        }
    }
}

/// Adds the products of codes with the high and the low bytes of four inputs of each row.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn add<const R: usize>(dots: &mut [[__m512i; 2]; R], codes: __m512i, rows: &[RowBlock; R], word: usize) {
    for (part, offset) in [offset_of!(RowBlock, high), offset_of!(RowBlock, low)].into_iter().enumerate() {
        let words = rows.as_ptr().wrapping_byte_add(offset).cast::<i32>().wrapping_add(word);
        // SAFETY: there is a row for each dot product, and `words` points to four inputs of the first.
        unsafe { add_rows::<RowBlock>(dots.iter_mut().map(|dots| &mut dots[part]), codes, words) };
    }
}

/// Adds the products of codes with four inputs of each of up to eight adjacent rows of `T`.
///
/// # Safety
/// `words` points to four inputs of the first row, and there is a row for each dot product.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
pub(super) unsafe fn add_rows<'a, T>(
    mut dots: impl Iterator<Item = &'a mut __m512i>,
    codes: __m512i,
    words: *const i32,
) {
    // SAFETY: the caller guarantees the rows.
    unsafe {
        add_row::<T, 0>(dots.next(), codes, words);
        add_row::<T, 1>(dots.next(), codes, words);
        add_row::<T, 2>(dots.next(), codes, words);
        add_row::<T, 3>(dots.next(), codes, words);
        add_row::<T, 4>(dots.next(), codes, words);
        add_row::<T, 5>(dots.next(), codes, words);
        add_row::<T, 6>(dots.next(), codes, words);
        add_row::<T, 7>(dots.next(), codes, words);
    }
}

/// Adds the products of codes with four inputs of row `ROW` of some adjacent rows, if it has a dot product. The compiler would
/// load the inputs of all rows first, for which there are too few registers.
///
/// # Safety
/// If there is a dot product, `words` points to four inputs of the first row, and there are more than `ROW` rows.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_row<T, const ROW: usize>(dot: Option<&mut __m512i>, codes: __m512i, words: *const i32) {
    let Some(dot) = dot else { return };
    // SAFETY: the caller guarantees that the words can be read.
    unsafe {
        asm!(
            "vpdpbusd {dot}, {codes}, dword ptr [{words} + {row}]{{1to16}}",
            dot = inout(zmm_reg) *dot,
            codes = in(zmm_reg) codes,
            words = in(reg) words,
            row = const ROW * size_of::<T>(),
            options(pure, readonly, nostack, preserves_flags)
        );
    }
}

/// The vectors of a run of `BYTES` bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn vectors<const BYTES: usize>(run: &[u8; BYTES]) -> [__m512i; RUN / 4] {
    let (stored, _) = run.as_chunks::<VECTOR>();
    if BYTES == CodeWidth::Eight.run_bytes() {
        return [load(&stored[0]), load(&stored[1]), load(&stored[2]), load(&stored[3])];
    }
    let [first, second] = nibbles(load(&stored[0]));
    let [third, fourth] = nibbles(load(&stored[1]));
    if BYTES == CodeWidth::Four.run_bytes() {
        return [first, second, third, fourth];
    }
    let upper = load(&stored[2]);
    let with = |low, upper| _mm512_or_si512(low, _mm512_and_si512(upper, _mm512_set1_epi8(0x30)));
    [
        with(first, _mm512_slli_epi16::<4>(upper)),
        with(second, _mm512_slli_epi16::<2>(upper)),
        with(third, upper),
        with(fourth, _mm512_srli_epi16::<2>(upper)),
    ]
}

/// Prefetches the codes that follow after some groups. An address after the matrix is ignored.
#[inline(always)]
pub(super) fn prefetch_after(codes: &[u8]) {
    prefetch_lines(codes.as_ptr().wrapping_add(PREFETCH), codes.len());
}

/// Prefetches the factors of some groups.
pub(super) fn prefetch_factors(panel: &Panel<'_>, groups: Range<usize>) {
    let format = panel.format;
    let integers = groups.start * PANEL..groups.end * PANEL;
    let factors = groups.start / format.groups * PANEL..groups.end / format.groups * PANEL;
    if format.is_super() {
        prefetch(&panel.group_scales[integers.clone()]);
    }
    if format.is_super() && format.has_minimums {
        prefetch(&panel.group_minimums[integers]);
    }
    prefetch(&panel.scales[factors.clone()]);
    if format.has_minimums {
        prefetch(&panel.minimums[factors]);
    }
}

/// Prefetches values.
#[inline(always)]
pub(super) fn prefetch<T>(values: &[T]) {
    prefetch_lines(values.as_ptr().cast(), size_of_val(values));
}

#[inline(always)]
fn prefetch_lines(first: *const u8, length: usize) {
    for line in (0..length).step_by(VECTOR) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(line).cast()) };
    }
}

/// The low and the high four bits of each byte.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn nibbles(codes: __m512i) -> [__m512i; 2] {
    let mask = _mm512_set1_epi8(0x0f);
    [_mm512_and_si512(codes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask)]
}

/// The 16 values of a vector.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn values(vector: __m512) -> [f32; PANEL] {
    let mut values = [0.0; PANEL];
    // SAFETY: 16 values are one vector.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), vector) };
    values
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: 64 bytes are one vector.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// The f16 values of super-block `block`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn halves(values: &[u16], block: usize) -> __m512 {
    let values: &[u16; PANEL] = &values.as_chunks().0[block];
    // SAFETY: 16 halves are half a vector.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
}

/// The integers of group `group`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn signed(values: &[i8], group: usize) -> __m512i {
    let values: &[i8; PANEL] = &values.as_chunks().0[group];
    // SAFETY: 16 bytes are a quarter of a vector.
    unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(values.as_ptr().cast())) }
}

/// The integers of group `group`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn unsigned(values: &[u8], group: usize) -> __m512i {
    let values: &[u8; PANEL] = &values.as_chunks().0[group];
    // SAFETY: 16 bytes are a quarter of a vector.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(values.as_ptr().cast())) }
}
