//! Products with AVX2. Codes and activations are multiplied as 16-bit integers: pairs of bytes would overflow.

use std::arch::x86_64::{
    __m256, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
    _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps,
    _mm256_fmsub_ps, _mm256_fnmadd_ps, _mm256_load_si256, _mm256_loadu_si256, _mm256_madd_epi16,
    _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_setzero_si256, _mm256_slli_epi16, _mm256_srai_epi16, _mm256_srli_epi16,
    _mm256_srli_epi32, _mm256_store_si256, _mm256_storeu_ps,
};
use std::ops::Range;

use super::format::CodeWidth;
use super::instructions::has_short_vectors;
use super::panel::Panel;
use super::rows::{QuantizedRows, SomeRows};
use super::{BLOCK, GROUP, PANEL, RUN, VECTOR};
use crate::isa::Isa;

/// Columns of a vector of sums.
const COLUMNS: usize = 8;

/// Both halves of the columns of a panel.
pub(super) type Halves<T> = [T; PANEL / COLUMNS];

/// The activations of a row's group as 16-bit integers: in each word, two inputs of four.
#[repr(C, align(32))]
pub(super) struct Words {
    /// Inputs 0 and 2.
    pub(super) even: [i32; GROUP / 4],
    /// Inputs 1 and 3.
    pub(super) odd: [i32; GROUP / 4],
}

impl Words {
    pub(super) const ZEROS: Words = Words { even: [0; GROUP / 4], odd: [0; GROUP / 4] };

    /// Adds the products of four inputs to dot products. Codes are those of inputs 0 and 2, and of 1 and 3.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn add(&self, dots: &mut Halves<__m256i>, codes: Halves<[__m256i; 2]>, word: usize) {
        let (even, odd) = (_mm256_set1_epi32(self.even[word]), _mm256_set1_epi32(self.odd[word]));
        for (dot, [first, second]) in dots.iter_mut().zip(codes) {
            let both = _mm256_add_epi32(_mm256_madd_epi16(first, even), _mm256_madd_epi16(second, odd));
            *dot = _mm256_add_epi32(*dot, both);
        }
    }
}

/// Multiplies some rows with a panel, if there are instructions for it. The first row begins a tile.
pub(super) fn multiply(
    isa: Isa,
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    part: Range<usize>,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) -> bool {
    if !has_short_vectors(isa) {
        return false;
    }
    let mut first = part.start;
    while first < part.end {
        // SAFETY: the processor has these instructions.
        unsafe {
            match part.end - first {
                4.. => some_rows::<4>(panel, rows, &mut first, put),
                2.. => some_rows::<2>(panel, rows, &mut first, put),
                _ => some_rows::<1>(panel, rows, &mut first, put),
            }
        }
    }
    true
}

/// Multiplies the next `R` rows with a panel. A row has the same result for every `R`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn some_rows<const R: usize>(
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    for sums in products(panel, rows.some::<R>(*first)) {
        put(*first, &values(sums));
        *first += 1;
    }
}

/// The 16 values of two vectors.
#[target_feature(enable = "avx")]
#[inline]
pub(super) fn values(vectors: Halves<__m256>) -> [f32; PANEL] {
    let mut values = [0.0; PANEL];
    for (values, vector) in values.as_chunks_mut::<COLUMNS>().0.iter_mut().zip(vectors) {
        // SAFETY: eight values are one vector.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), vector) };
    }
    values
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn products<const R: usize>(panel: &Panel<'_>, rows: SomeRows<'_, R>) -> [Halves<__m256>; R] {
    let format = panel.format;
    let mut sums = [[_mm256_setzero_ps(); 2]; R];
    for (group, codes) in panel.codes.chunks_exact(format.group_bytes()).enumerate() {
        let first = group * format.group;
        let (blocks, first) = (rows.block(first / BLOCK), first % BLOCK);
        let half = first % GROUP / 16;
        let inputs = blocks.each_ref().map(|block| words(block.group(first / GROUP)));
        let mut dots = [[_mm256_setzero_si256(); 2]; R];
        for (at, codes) in codes.chunks_exact(format.width.run_bytes()).enumerate() {
            let word = (half + at) * RUN / 4;
            match format.width {
                CodeWidth::Four => {
                    add_run::<R, { CodeWidth::Four.run_bytes() }>(&mut dots, codes, &inputs, word);
                }
                CodeWidth::Six => {
                    add_run::<R, { CodeWidth::Six.run_bytes() }>(&mut dots, codes, &inputs, word);
                }
                CodeWidth::Eight => {
                    add_run::<R, { CodeWidth::Eight.run_bytes() }>(&mut dots, codes, &inputs, word);
                }
            }
        }
        let factors = [0, 1].map(|half| factors(panel, group, half));
        for ((sums, dots), block) in sums.iter_mut().zip(dots).zip(blocks) {
            let total = _mm256_set1_ps(block.sum(format.group, first / format.group));
            let scale = _mm256_set1_ps(block.scale);
            for ((sum, dot), [by, minimum]) in sums.iter_mut().zip(dots).zip(factors) {
                let part = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), by);
                *sum = _mm256_fmadd_ps(_mm256_fnmadd_ps(minimum, total, part), scale, *sum);
            }
        }
    }
    sums
}

/// Adds the products of a run of `BYTES` bytes to the dot products of each row.
#[target_feature(enable = "avx2")]
#[inline]
fn add_run<const R: usize, const BYTES: usize>(
    dots: &mut [Halves<__m256i>; R],
    run: &[u8],
    inputs: &[Words; R],
    first: usize,
) {
    for word in 0..RUN / 4 {
        let codes = codes::<BYTES>(run, word);
        for (dots, inputs) in dots.iter_mut().zip(inputs) {
            inputs.add(dots, codes, first + word);
        }
    }
}

/// The codes of four inputs of a run of `BYTES` bytes: those of inputs 0 and 2, and of 1 and 3.
#[target_feature(enable = "avx2")]
#[inline]
fn codes<const BYTES: usize>(run: &[u8], word: usize) -> Halves<[__m256i; 2]> {
    let (stored, _) = run.as_chunks::<VECTOR>();
    if BYTES == CodeWidth::Eight.run_bytes() {
        return load(&stored[word]).map(|codes| bytes(codes));
    }
    let nibbles = load(&stored[word / 2]);
    let low = if word.is_multiple_of(2) {
        nibbles.map(|codes| low_nibbles(codes))
    } else {
        nibbles.map(|codes| high_nibbles(codes))
    };
    if BYTES == CodeWidth::Four.run_bytes() {
        return low;
    }
    let [first, second] = load(&stored[2]);
    [with_upper(low[0], first, word), with_upper(low[1], second, word)]
}

/// Writes the weights of some groups in f32: the 16 outputs of an input are adjacent.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn widen(panel: &Panel<'_>, groups: Range<usize>, to: &mut [f32]) {
    let format = panel.format;
    for (group, to) in groups.zip(to.chunks_exact_mut(format.group * PANEL)) {
        let factors = [0, 1].map(|half| factors(panel, group, half));
        let runs = panel.group_codes(group..group + 1).chunks_exact(format.width.run_bytes());
        for (run, to) in runs.zip(to.as_chunks_mut().0) {
            match format.width {
                CodeWidth::Four => widen_run::<{ CodeWidth::Four.run_bytes() }>(run, factors, to),
                CodeWidth::Six => widen_run::<{ CodeWidth::Six.run_bytes() }>(run, factors, to),
                CodeWidth::Eight => widen_run::<{ CodeWidth::Eight.run_bytes() }>(run, factors, to),
            }
        }
    }
}

/// Writes the weights of a run of `BYTES` bytes.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn widen_run<const BYTES: usize>(run: &[u8], factors: Halves<[__m256; 2]>, to: &mut [f32; RUN * PANEL]) {
    for (word, to) in to.as_chunks_mut::<{ 4 * PANEL }>().0.iter_mut().enumerate() {
        for (half, [even, odd]) in codes::<BYTES>(run, word).into_iter().enumerate() {
            let [scale, minimum] = factors[half];
            let lower = _mm256_set1_epi32(0xffff);
            let inputs = [
                _mm256_and_si256(even, lower),
                _mm256_and_si256(odd, lower),
                _mm256_srli_epi32::<16>(even),
                _mm256_srli_epi32::<16>(odd),
            ];
            for (codes, to) in inputs.into_iter().zip(to.as_chunks_mut::<PANEL>().0) {
                let weights = _mm256_fmsub_ps(_mm256_cvtepi32_ps(codes), scale, minimum);
                let to: &mut [f32; COLUMNS] = &mut to.as_chunks_mut().0[half];
                // SAFETY: eight values are one vector.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr(), weights) };
            }
        }
    }
}

/// Four bits of codes, with the upper two bits of vector `word`.
#[target_feature(enable = "avx2")]
#[inline]
fn with_upper(low: [__m256i; 2], upper: __m256i, word: usize) -> [__m256i; 2] {
    let aligned = match word {
        0 => _mm256_slli_epi16::<4>(upper),
        1 => _mm256_slli_epi16::<2>(upper),
        2 => upper,
        _ => _mm256_srli_epi16::<2>(upper),
    };
    let [even, odd] = bytes(_mm256_and_si256(aligned, _mm256_set1_epi8(0x30)));
    [_mm256_or_si256(low[0], even), _mm256_or_si256(low[1], odd)]
}

/// The activations of a group: `256 · high + low`.
#[target_feature(enable = "avx2")]
#[inline]
fn words([high, low]: [&[i32; GROUP / 4]; 2]) -> Words {
    let mut words = Words::ZEROS;
    // SAFETY: eight words are one vector; groups and words are aligned to 32 bytes.
    unsafe {
        let high = _mm256_load_si256(high.as_ptr().cast());
        let low = _mm256_load_si256(low.as_ptr().cast());
        let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(low));
        let even = _mm256_add_epi16(_mm256_slli_epi16::<8>(high), even);
        let top = _mm256_and_si256(high, _mm256_set1_epi16(0xff00_u16.cast_signed()));
        let odd = _mm256_add_epi16(top, _mm256_srai_epi16::<8>(low));
        _mm256_store_si256(words.even.as_mut_ptr().cast(), even);
        _mm256_store_si256(words.odd.as_mut_ptr().cast(), odd);
    }
    words
}

/// Codes of eight bits.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn bytes(codes: __m256i) -> [__m256i; 2] {
    [_mm256_and_si256(codes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(codes)]
}

/// Codes in the low half of each byte.
#[target_feature(enable = "avx2")]
#[inline]
fn low_nibbles(codes: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi16(0x0f);
    [_mm256_and_si256(codes, mask), _mm256_and_si256(_mm256_srli_epi16::<8>(codes), mask)]
}

/// Codes in the high half of each byte.
#[target_feature(enable = "avx2")]
#[inline]
fn high_nibbles(codes: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi16(0x0f);
    [_mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask), _mm256_srli_epi16::<12>(codes)]
}

/// Scale and minimum of a group, for half of the columns.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn factors(panel: &Panel<'_>, group: usize, half: usize) -> [__m256; 2] {
    let format = panel.format;
    let (integer, factor) = (2 * group + half, 2 * (group / format.groups) + half);
    let mut scale = floats(panel.scales, factor);
    if format.is_super() {
        let values: &[i8; COLUMNS] = &panel.group_scales.as_chunks().0[integer];
        // SAFETY: eight bytes are read.
        let values = unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(values.as_ptr().cast())) };
        scale = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(values));
    }
    let minimum = match (format.has_minimums, format.is_super()) {
        (false, _) => _mm256_mul_ps(scale, _mm256_set1_ps(f32::from(format.zero))),
        (true, false) => floats(panel.minimums, factor),
        (true, true) => {
            let values: &[u8; COLUMNS] = &panel.group_minimums.as_chunks().0[integer];
            // SAFETY: eight bytes are read.
            let values = unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(values.as_ptr().cast())) };
            _mm256_mul_ps(floats(panel.minimums, factor), _mm256_cvtepi32_ps(values))
        }
    };
    [scale, minimum]
}

/// Eight f16 values.
#[target_feature(enable = "avx,f16c")]
#[inline]
fn floats(values: &[u16], at: usize) -> __m256 {
    let values: &[u16; COLUMNS] = &values.as_chunks().0[at];
    // SAFETY: eight halves are 16 bytes.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast())) }
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load(bytes: &[u8; VECTOR]) -> Halves<__m256i> {
    // SAFETY: 64 bytes are two vectors.
    unsafe { [_mm256_loadu_si256(bytes.as_ptr().cast()), _mm256_loadu_si256(bytes.as_ptr().add(32).cast())] }
}
