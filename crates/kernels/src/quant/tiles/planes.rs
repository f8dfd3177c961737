//! The codes of a super-block times the integer scales of its groups, as two planes of signed bytes: a product is
//! `2^shift · high + low`.

use std::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_mask_blend_epi8, _mm512_mullo_epi16, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srai_epi16,
    _mm512_srli_epi16, _mm512_srli_epi32, _mm512_storeu_si512, _mm512_sub_epi8,
};

use super::super::avx512::{load, nibbles, signed, vectors};
use super::super::format::{CodeWidth, QuantFormat};
use super::super::panel::Panel;
use super::super::{BLOCK, PANEL, RUN, VECTOR};

/// Bytes of a plane.
pub(super) const PLANE: usize = BLOCK * PANEL;
/// Parts of a plane, of 64 inputs each.
pub(super) const PARTS: usize = 4;
/// Both planes of a product.
type Planes = [__m512i; 2];

/// The shift of the high plane. Codes of four bits are multiplied with three bits of a scale at a time.
pub(super) const fn shift(width: CodeWidth) -> u32 {
    match width {
        CodeWidth::Four => 3,
        CodeWidth::Six | CodeWidth::Eight => 7,
    }
}

/// Writes both planes of a super-block. With `SIGNED`, the code of zero is subtracted from codes of six and eight bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn unpack<const SIGNED: bool>(panel: &Panel<'_>, block: usize, to: &mut [u8; 2 * PLANE]) {
    let format = panel.format;
    let codes = panel.block_codes(block);
    let scales = &panel.group_scales[block * format.groups * PANEL..][..format.groups * PANEL];
    let (high, low) = to.split_at_mut(PLANE);
    match format.width {
        CodeWidth::Four => {
            let codes = codes.as_chunks::<{ 4 * VECTOR }>().0.iter().enumerate();
            let to = high.as_chunks_mut().0.iter_mut().zip(low.as_chunks_mut().0);
            for ((group, codes), (high, low)) in codes.zip(to) {
                unpack_four_bits(codes, signed(scales, group), high, low);
            }
        }
        CodeWidth::Six => {
            unpack_runs::<{ CodeWidth::Six.run_bytes() }, SIGNED>(&format, codes, scales, [high, low]);
        }
        CodeWidth::Eight => {
            unpack_runs::<{ CodeWidth::Eight.run_bytes() }, SIGNED>(&format, codes, scales, [high, low]);
        }
    }
}

/// Multiplies codes with three bits of a scale at a time: two products fit into 16 bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn unpack_four_bits(
    codes: &[u8; 4 * VECTOR],
    scale: __m512i,
    high: &mut [u8; 8 * VECTOR],
    low: &mut [u8; 8 * VECTOR],
) {
    let low_bits = twice(_mm512_and_si512(scale, _mm512_set1_epi32(7)));
    let high_bits = twice(_mm512_srli_epi32::<3>(scale));
    for (word, codes) in codes.as_chunks::<VECTOR>().0.iter().enumerate() {
        let [first, second] = nibbles(load(codes));
        put(high, 2 * word, _mm512_mullo_epi16(first, high_bits));
        put(low, 2 * word, _mm512_mullo_epi16(first, low_bits));
        put(high, 2 * word + 1, _mm512_mullo_epi16(second, high_bits));
        put(low, 2 * word + 1, _mm512_mullo_epi16(second, low_bits));
    }
}

/// Multiplies the codes of runs of `BYTES` bytes with the scales of their groups.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn unpack_runs<const BYTES: usize, const SIGNED: bool>(
    format: &QuantFormat,
    codes: &[u8],
    scales: &[i8],
    [high, low]: [&mut [u8]; 2],
) {
    let to = high.as_chunks_mut::<{ 4 * VECTOR }>().0.iter_mut().zip(low.as_chunks_mut().0);
    let of_group = format.group / RUN;
    for (run, (codes, (high, low))) in codes.as_chunks::<BYTES>().0.iter().zip(to).enumerate() {
        let scale = twice(_mm512_and_si512(signed(scales, run / of_group), _mm512_set1_epi32(0xffff)));
        for (word, codes) in vectors(codes).into_iter().enumerate() {
            let planes = if SIGNED {
                let zero = _mm512_set1_epi8(format.zero.cast_signed());
                scaled::<true>(_mm512_sub_epi8(codes, zero), scale)
            } else {
                scaled::<false>(codes, scale)
            };
            put::<{ 4 * VECTOR }>(high, word, planes[0]);
            put::<{ 4 * VECTOR }>(low, word, planes[1]);
        }
    }
}

/// Writes four inputs of each column.
#[target_feature(enable = "avx512f")]
#[inline]
fn put<const BYTES: usize>(to: &mut [u8; BYTES], word: usize, values: __m512i) {
    let to: &mut [u8; VECTOR] = &mut to.as_chunks_mut().0[word];
    // SAFETY: 64 bytes are one vector.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), values) };
}

/// The low halves of words in both halves.
#[target_feature(enable = "avx512f")]
#[inline]
fn twice(words: __m512i) -> __m512i {
    _mm512_or_si512(words, _mm512_slli_epi32::<16>(words))
}

/// The products of bytes with scales of 16 bits. They have 15 bits, of which the low plane has seven.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn scaled<const SIGNED: bool>(codes: __m512i, scale: __m512i) -> Planes {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let (even, odd) = if SIGNED {
        (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(codes)), _mm512_srai_epi16::<8>(codes))
    } else {
        (_mm512_and_si512(codes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(codes))
    };
    let (even, odd) = (_mm512_mullo_epi16(even, scale), _mm512_mullo_epi16(odd, scale));
    let high = _mm512_mask_blend_epi8(ODD, _mm512_srli_epi16::<7>(even), _mm512_slli_epi16::<1>(odd));
    let low = _mm512_mask_blend_epi8(ODD, even, _mm512_slli_epi16::<8>(odd));
    [high, _mm512_and_si512(low, _mm512_set1_epi8(0x7f))]
}
