//! bf16 attention on tiles: 32 queries against all keys, softmax in f32, probabilities in bf16.

use std::arch::x86_64::{
    __m512i, _mm256_loadu_si256, _mm512_cvtepu16_epi32, _mm512_loadu_si512, _mm512_mul_ps, _mm512_or_si512,
    _mm512_set1_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::attention_head::AttentionHeadBf16;
use super::panels::{Panels, STEP};
use super::softmax::softmax_unscaled;
use super::tiles::Tiles;
use super::vectors::{load, round};
use crate::buffer::Buffer;

/// Values in a tile of keys or values.
const TILE: usize = 512;

/// Scratch memory, reused between calls.
#[derive(Default)]
pub struct AttentionScratchBf16 {
    keys: Buffer<u16>,
    values: Buffer<u16>,
    scores: Buffer<f32>,
    probabilities: Buffer<u16>,
    context: Buffer<f32>,
}

impl AttentionScratchBf16 {
    /// Allocated bytes.
    pub fn bytes(&self) -> usize {
        let AttentionScratchBf16 { keys, values, scores, probabilities, context } = self;
        [keys, values, probabilities].map(Buffer::bytes).iter().sum::<usize>()
            + scores.bytes()
            + context.bytes()
    }
}

impl AttentionHeadBf16<'_> {
    /// Computes attention into the panels of `output` from `panel` on.
    pub fn attend(
        &self,
        tiles: &Tiles,
        scratch: &mut AttentionScratchBf16,
        output: &mut Panels<u16>,
        panel: usize,
    ) {
        let parts = self.panels;
        let padded = self.length.next_multiple_of(STEP);
        assert!(parts > 0 && self.length > 0 && self.start + padded <= self.rows.height());
        assert!([self.query, self.key, self.value].iter().all(|first| first + parts <= self.rows.panels()));
        assert!(panel + parts <= output.panels() && self.start + self.length <= output.height());
        scratch.keys.grow(padded * parts * STEP);
        scratch.values.grow(padded * parts * STEP);
        scratch.scores.grow(STEP * padded);
        scratch.probabilities.grow(STEP * padded);
        scratch.context.grow(STEP * STEP);
        // SAFETY: `Tiles` exists only where these instructions do; the sizes were checked above.
        unsafe { self.attend_all(tiles, scratch, output, panel) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn attend_all(
        &self,
        tiles: &Tiles,
        scratch: &mut AttentionScratchBf16,
        output: &mut Panels<u16>,
        panel: usize,
    ) {
        let length = self.length;
        let padded = length.next_multiple_of(STEP);
        let parts = self.panels;
        // SAFETY: the scratch holds `padded` keys and values.
        unsafe {
            self.pack_keys(&mut scratch.keys);
            self.pack_values(&mut scratch.values);
        }
        for query in (0..length).step_by(STEP) {
            let count = STEP.min(length - query);
            let all = count > STEP / 2;
            // Whole tiles of keys that any of these queries attends to.
            let first = self.mask.keys(query, length).start / STEP * STEP;
            let last = self.mask.keys(query + count - 1, length).end.next_multiple_of(STEP);
            for key in (first..last).step_by(STEP) {
                tiles.zero();
                for part in 0..parts {
                    // SAFETY: rows up to `padded` can be read, and the keys are packed in tiles of 16 by 32.
                    unsafe {
                        let top = self.rows.rows_from(self.query + part, self.start + query).as_ptr();
                        let left = scratch.keys.as_ptr().add((key / 16 * parts + part) * TILE);
                        let right = left.add(parts * TILE);
                        if all {
                            tiles.multiply_2x2(top, top.add(STEP / 2 * STEP), 64, left, right);
                        } else {
                            tiles.multiply_1x2(top, 64, left, right);
                        }
                    }
                }
                // SAFETY: the scores are 32 rows of `padded`.
                unsafe { tiles.store(scratch.scores.as_mut_ptr().add(key), padded * 4, all) };
            }
            let mut scales = [0.0f32; STEP];
            for (place, scale) in scales.iter_mut().enumerate().take(count) {
                let scores = &mut scratch.scores[place * padded..][first..last];
                let probabilities = &mut scratch.probabilities[place * padded..][first..last];
                let seen = self.mask.keys(query + place, length);
                let bias =
                    self.relative_bias.map(|relative_bias| &relative_bias.row(query + place)[seen.start..]);
                *scale = softmax_unscaled(
                    scores,
                    seen.start - first..seen.end - first,
                    (self.scale, self.softcap),
                    bias,
                    probabilities,
                );
            }
            for part in 0..parts {
                tiles.zero();
                for key in (first..last).step_by(STEP) {
                    // SAFETY: probabilities are 32 rows of `padded`, and the values are packed in tiles of 32 by 16.
                    unsafe {
                        let top = scratch.probabilities.as_ptr().add(key);
                        let left = scratch.values.as_ptr().add((key / STEP * parts + part) * 2 * TILE);
                        let right = left.add(TILE);
                        if all {
                            tiles.multiply_2x2(top, top.add(STEP / 2 * padded), padded * 2, left, right);
                        } else {
                            tiles.multiply_1x2(top, padded * 2, left, right);
                        }
                    }
                }
                // SAFETY: the buffer holds 32 rows of 32.
                unsafe { tiles.store(scratch.context.as_mut_ptr(), STEP * 4, all) };
                let rows = scratch.context.as_chunks().0.iter().take(count);
                let to = output.rows_from_mut(panel + part, self.start + query).as_chunks_mut().0;
                for ((row, to), scale) in rows.zip(to).zip(scales) {
                    let scale = _mm512_set1_ps(scale);
                    round(load(row).map(|x| _mm512_mul_ps(x, scale)), to);
                }
            }
        }
    }

    /// Packs keys as tiles: 16 keys side by side, their values in pairs of rows.
    ///
    /// # Safety
    /// `to` holds `padded` rows of the head's panels, and the processor has `avx512f`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn pack_keys(&self, to: &mut [u16]) {
        let parts = self.panels;
        for part in 0..parts {
            let from = self.rows.rows_from(self.key + part, self.start).as_ptr();
            for key in (0..self.length.next_multiple_of(STEP)).step_by(16) {
                // SAFETY: rows up to a multiple of 32 can be read, and the caller guarantees the capacity.
                unsafe {
                    let mut rows = [_mm512_setzero_si512(); 16];
                    for (place, row) in rows.iter_mut().enumerate() {
                        *row = _mm512_loadu_si512(from.add((key + place) * STEP).cast());
                    }
                    let to = to.as_mut_ptr().add((key / 16 * parts + part) * TILE);
                    for (place, row) in transposed(&rows).into_iter().enumerate() {
                        _mm512_storeu_si512(to.add(place * STEP).cast(), row);
                    }
                }
            }
        }
    }

    /// Packs values as tiles: 16 columns side by side, keys in pairs of rows. Rows beyond the sequence are zero, so
    /// that stale memory does not contribute.
    ///
    /// # Safety
    /// As for `pack_keys`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn pack_values(&self, to: &mut [u16]) {
        let parts = self.panels;
        for part in 0..parts {
            let from = self.rows.rows_from(self.value + part, self.start).as_ptr();
            for key in (0..self.length.next_multiple_of(STEP)).step_by(2) {
                for half in 0..2 {
                    // SAFETY: rows up to a multiple of 32 can be read, and the caller guarantees the capacity.
                    unsafe {
                        let values = |row: usize| {
                            if row >= self.length {
                                return _mm512_setzero_si512();
                            }
                            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(row * STEP + half * 16).cast()))
                        };
                        let pairs = _mm512_or_si512(values(key), _mm512_slli_epi32(values(key + 1), 16));
                        let tile = (key / STEP * parts + part) * 2 + half;
                        _mm512_storeu_si512(
                            to.as_mut_ptr().add(tile * TILE + key % STEP / 2 * STEP).cast(),
                            pairs,
                        );
                    }
                }
            }
        }
    }
}

/// Transposes a 16 by 16 matrix of 32-bit values.
#[target_feature(enable = "avx512f")]
fn transposed(rows: &[__m512i; 16]) -> [__m512i; 16] {
    let zero = _mm512_setzero_si512();
    let (mut pairs, mut fours, mut out) = ([zero; 16], [zero; 16], [zero; 16]);
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    for i in 0..4 {
        fours[4 * i] = _mm512_unpacklo_epi64(pairs[4 * i], pairs[4 * i + 2]);
        fours[4 * i + 1] = _mm512_unpackhi_epi64(pairs[4 * i], pairs[4 * i + 2]);
        fours[4 * i + 2] = _mm512_unpacklo_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
        fours[4 * i + 3] = _mm512_unpackhi_epi64(pairs[4 * i + 1], pairs[4 * i + 3]);
    }
    for c in 0..4 {
        let even = [
            _mm512_shuffle_i32x4::<0x88>(fours[c], fours[4 + c]),
            _mm512_shuffle_i32x4::<0x88>(fours[8 + c], fours[12 + c]),
        ];
        let odd = [
            _mm512_shuffle_i32x4::<0xdd>(fours[c], fours[4 + c]),
            _mm512_shuffle_i32x4::<0xdd>(fours[8 + c], fours[12 + c]),
        ];
        out[c] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    out
}
