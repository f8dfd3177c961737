//! Quantizes activations with AVX-512.

use std::arch::x86_64::{
    __m512, _CMP_LT_OQ, _mm_storeu_si128, _mm512_abs_ps, _mm512_add_epi32, _mm512_cmp_ps_mask,
    _mm512_cvtepi32_epi8, _mm512_cvtps_epi32, _mm512_cvtsepi32_epi8, _mm512_dpbusd_epi32, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_max_ps, _mm512_mul_ps, _mm512_reduce_add_epi32, _mm512_reduce_max_ps,
    _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_epi32, _mm512_srai_epi32, _mm512_storeu_si512,
};

use super::GROUP;
use super::byte_codes::{LARGEST_BYTE, RowGroup};
use super::codes::{ByteBlock, LARGEST, RowBlock};

/// Quantizes the values of a block: 256, or fewer at the end of a row.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn quantize(values: &[f32], to: &mut RowBlock) {
    let infinite = _mm512_set1_ps(f32::INFINITY);
    let (mut top, mut finite) = (_mm512_setzero_ps(), 0xffff);
    let (groups, _) = values.as_chunks::<GROUP>();
    for values in groups {
        for values in load(values) {
            let size = _mm512_abs_ps(values);
            finite &= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, infinite);
            top = _mm512_max_ps(top, size);
        }
    }
    let scale = _mm512_reduce_max_ps(top) / LARGEST;
    let inverse = _mm512_set1_ps(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    for (group, values) in groups.iter().enumerate() {
        let codes = load(values).map(|x| _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
        for (half, codes) in codes.into_iter().enumerate() {
            // The low byte is signed, so the high byte is the nearest.
            let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(codes, _mm512_set1_epi32(128)));
            for (to, codes) in [(&mut to.high, high), (&mut to.low, codes)] {
                let to: &mut [i32] = &mut to[8 * group + 4 * half..][..4];
                // SAFETY: 16 bytes are four words.
                unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(codes)) };
            }
        }
        to.set_sums(group, codes.map(|codes| _mm512_reduce_add_epi32(codes) as f32));
    }
    to.scale = if finite == 0xffff { scale } else { f32::NAN };
}

/// Quantizes the values of a block to bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn quantize_block(values: &[f32], to: &mut ByteBlock) {
    let infinite = _mm512_set1_ps(f32::INFINITY);
    let (mut top, mut finite) = (_mm512_setzero_ps(), 0xffff);
    let (groups, _) = values.as_chunks::<GROUP>();
    for values in groups {
        for values in load(values) {
            let size = _mm512_abs_ps(values);
            finite &= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, infinite);
            top = _mm512_max_ps(top, size);
        }
    }
    let scale = _mm512_reduce_max_ps(top) / LARGEST_BYTE;
    let inverse = _mm512_set1_ps(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    for (values, to) in groups.iter().zip(to.codes.as_chunks_mut::<{ GROUP / 4 }>().0) {
        let [first, second] = load(values);
        let (first, second) = (_mm512_mul_ps(first, inverse), _mm512_mul_ps(second, inverse));
        // SAFETY: 16 bytes are four words.
        unsafe {
            let to = to.as_mut_ptr();
            _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(first)));
            _mm_storeu_si128(to.add(4).cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(second)));
        }
    }
    let mut sums = [0; 16];
    for (codes, sums) in to.codes.as_chunks::<16>().0.iter().zip(sums.as_chunks_mut::<4>().0) {
        // SAFETY: 16 words are one vector.
        let codes = unsafe { _mm512_loadu_si512(codes.as_ptr().cast()) };
        // Sums of four codes, which are added within each quarter of the vector.
        let of_words = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
        let of_pairs = _mm512_add_epi32(of_words, _mm512_shuffle_epi32::<0b10_11_00_01>(of_words));
        let of_all = _mm512_add_epi32(of_pairs, _mm512_shuffle_epi32::<0b01_00_11_10>(of_pairs));
        let mut totals = [0; 16];
        // SAFETY: 16 words are one vector.
        unsafe { _mm512_storeu_si512(totals.as_mut_ptr().cast(), of_all) };
        for (sum, total) in sums.iter_mut().zip(totals.iter().step_by(4)) {
            *sum = *total as i16;
        }
    }
    to.set_sums(sums);
    to.scale = if finite == 0xffff { scale } else { f32::NAN };
}

/// Quantizes the values of a group to bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn quantize_bytes(values: &[f32; GROUP], to: &mut RowGroup) {
    let values = load(values);
    let sizes = values.map(|x| _mm512_abs_ps(x));
    let finite = sizes.map(|size| _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(f32::INFINITY)));
    let scale = _mm512_reduce_max_ps(_mm512_max_ps(sizes[0], sizes[1])) / LARGEST_BYTE;
    let inverse = _mm512_set1_ps(if scale > 0.0 { 1.0 / scale } else { 0.0 });
    let codes = values.map(|x| _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
    for (to, codes) in to.codes.as_chunks_mut::<4>().0.iter_mut().zip(codes) {
        // SAFETY: 16 bytes are four words.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(codes)) };
    }
    to.set_sums(codes.map(|codes| _mm512_reduce_add_epi32(codes) as i16));
    to.scale = if finite == [0xffff; 2] { scale } else { f32::NAN };
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(values: &[f32; GROUP]) -> [__m512; 2] {
    // SAFETY: 32 values are two vectors.
    unsafe { [_mm512_loadu_ps(values.as_ptr()), _mm512_loadu_ps(values.as_ptr().add(16))] }
}
