//! Attention over one sequence on tiles: 32 queries against all keys, softmax in f32, probabilities in bf16.

use std::arch::x86_64::{
    __m512i, _mm256_loadu_si256, _mm512_cvtepu16_epi32, _mm512_loadu_si512, _mm512_or_si512,
    _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use super::STEP;
use super::bf16::{narrow, narrow_all, power_of_two};
use super::tiles::Tiles;
use crate::attention::{Columns, Distances};
use crate::buffer::Buffer;
use crate::rows::{LANES, folded, largest};

/// Numbers in a tile of keys or values.
const TILE: usize = 512;

/// Room that is kept between calls.
#[derive(Default)]
pub struct ScratchBf16 {
    keys: Buffer<u16>,
    values: Buffer<u16>,
    scores: Buffer<f32>,
    chances: Buffer<u16>,
    mixed: Buffer<f32>,
}

/// One head of one sequence; the head's width is a multiple of 32.
#[derive(Debug)]
pub struct HeadBf16<'a> {
    /// Rows of queries, keys and values with their bias; 31 rows more than the sequence has can be read.
    pub rows: &'a [u16],
    /// Tokens.
    pub length: usize,
    /// Where the head lies.
    pub at: Columns,
    /// A bias by distance.
    pub distances: Option<Distances<'a>>,
}

impl HeadBf16<'_> {
    /// Attends, into rows of `output` that are `output_stride` apart.
    pub fn attend(&self, tiles: &Tiles, scratch: &mut ScratchBf16, output: &mut [u16], output_stride: usize) {
        let Columns { stride, hidden, head, first } = self.at;
        let padded = self.length.next_multiple_of(STEP);
        assert!(head.is_multiple_of(STEP) && head > 0 && self.length > 0);
        assert!(2 * hidden + first + head <= stride && self.rows.len() >= padded * stride);
        assert!(output.len() >= (self.length - 1) * output_stride + head && output_stride >= head);
        scratch.keys.grow(padded * head);
        scratch.values.grow(padded * head);
        scratch.scores.grow(STEP * padded);
        scratch.chances.grow(STEP * padded);
        scratch.mixed.grow(STEP * STEP);
        // SAFETY: `Tiles` exists only where these instructions do; the sizes were checked above.
        unsafe { self.attend_all(tiles, scratch, output, output_stride) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn attend_all(
        &self,
        tiles: &Tiles,
        scratch: &mut ScratchBf16,
        output: &mut [u16],
        output_stride: usize,
    ) {
        let Columns { stride, head, first, .. } = self.at;
        let length = self.length;
        let padded = length.next_multiple_of(STEP);
        let parts = head / STEP;
        // SAFETY: the scratch has room for `padded` keys and values.
        unsafe {
            self.pack_keys(&mut scratch.keys);
            self.pack_values(&mut scratch.values);
        }
        for query in (0..length).step_by(STEP) {
            let count = STEP.min(length - query);
            let all = count > STEP / 2;
            for key in (0..padded).step_by(STEP) {
                tiles.zero();
                for part in 0..parts {
                    // SAFETY: rows up to `padded` can be read, and the keys are packed in tiles of 16 by 32.
                    unsafe {
                        let top = self.rows.as_ptr().add(query * stride + first + part * STEP);
                        let left = scratch.keys.as_ptr().add((key / 16 * parts + part) * TILE);
                        let right = left.add(parts * TILE);
                        if all {
                            tiles.four(top, top.add(STEP / 2 * stride), stride * 2, left, right);
                        } else {
                            tiles.two(top, stride * 2, left, right);
                        }
                    }
                }
                // SAFETY: the scores are 32 rows of `padded`.
                unsafe { tiles.store(scratch.scores.as_mut_ptr().add(key), padded * 4, all) };
            }
            let mut scales = [0.0f32; STEP];
            for (place, scale) in scales.iter_mut().enumerate().take(count) {
                let scores = &mut scratch.scores[place * padded..][..padded];
                let chances = &mut scratch.chances[place * padded..][..padded];
                *scale = self.soften(query + place, scores, chances);
            }
            for part in 0..parts {
                tiles.zero();
                for key in (0..padded).step_by(STEP) {
                    // SAFETY: chances are 32 rows of `padded`, and the values are packed in tiles of 32 by 16.
                    unsafe {
                        let top = scratch.chances.as_ptr().add(key);
                        let left = scratch.values.as_ptr().add((key / STEP * parts + part) * 2 * TILE);
                        let right = left.add(TILE);
                        if all {
                            tiles.four(top, top.add(STEP / 2 * padded), padded * 2, left, right);
                        } else {
                            tiles.two(top, padded * 2, left, right);
                        }
                    }
                }
                // SAFETY: the room is 32 rows of 32.
                unsafe { tiles.store(scratch.mixed.as_mut_ptr(), STEP * 4, all) };
                for (place, scale) in scales.iter().enumerate().take(count) {
                    let row = &mut scratch.mixed[place * STEP..][..STEP];
                    for x in row.iter_mut() {
                        *x *= scale;
                    }
                    let to = &mut output[(query + place) * output_stride + part * STEP..][..STEP];
                    narrow_all(row, to);
                }
            }
        }
    }

    /// Turns a row of scores into chances that are not divided by their sum yet, and gives what they are to be
    /// multiplied with. Padding has next to none, and its values are zero.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    #[inline]
    fn soften(&self, query: usize, scores: &mut [f32], chances: &mut [u16]) -> f32 {
        let length = self.length;
        let mut scale = 1.0 / (self.at.head as f32).sqrt();
        if let Some(distances) = self.distances {
            for (score, bias) in scores[..length].iter_mut().zip(distances.of(query)) {
                *score = score.mul_add(scale, *bias);
            }
            scale = 1.0;
        }
        scores[length..].fill(f32::NEG_INFINITY);
        let top = largest(scores);
        let scale = scale * std::f32::consts::LOG2_E;
        let mut sums = [0.0; LANES];
        for (scores, chances) in scores.as_chunks_mut::<LANES>().0.iter_mut().zip(chances.as_chunks_mut().0) {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                *score = power_of_two((*score - top) * scale);
                *sum += *score;
            }
            narrow(scores, chances);
        }
        1.0 / folded(sums, |a, b| a + b)
    }

    /// Keys as tiles: 16 keys side by side, their numbers in pairs down.
    ///
    /// # Safety
    /// `to` has room for `padded · head` numbers, and the processor has `avx512f`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn pack_keys(&self, to: &mut [u16]) {
        let Columns { stride, hidden, head, first } = self.at;
        let parts = head / STEP;
        for key in (0..self.length.next_multiple_of(STEP)).step_by(16) {
            for part in 0..parts {
                // SAFETY: rows up to a multiple of 32 can be read, and the room is the caller's word.
                unsafe {
                    let from = self.rows.as_ptr().add(key * stride + hidden + first + part * STEP);
                    let mut rows = [_mm512_setzero_si512(); 16];
                    for (place, row) in rows.iter_mut().enumerate() {
                        *row = _mm512_loadu_si512(from.add(place * stride).cast());
                    }
                    let to = to.as_mut_ptr().add((key / 16 * parts + part) * TILE);
                    for (place, row) in transposed(&rows).into_iter().enumerate() {
                        _mm512_storeu_si512(to.add(place * STEP).cast(), row);
                    }
                }
            }
        }
    }

    /// Values as tiles: 16 numbers side by side, keys in pairs down. Rows beyond the sequence are zero: whatever
    /// stands there, nothing of it may come through.
    ///
    /// # Safety
    /// As for `pack_keys`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
    unsafe fn pack_values(&self, to: &mut [u16]) {
        let Columns { stride, hidden, head, first } = self.at;
        let parts = head / STEP;
        for key in (0..self.length.next_multiple_of(STEP)).step_by(2) {
            for half in 0..2 * parts {
                // SAFETY: rows up to a multiple of 32 can be read, and the room is the caller's word.
                unsafe {
                    let from = self.rows.as_ptr().add(key * stride + 2 * hidden + first + half * 16);
                    let numbers = |row: usize| {
                        if key + row >= self.length {
                            return _mm512_setzero_si512();
                        }
                        _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.add(row * stride).cast()))
                    };
                    let pairs = _mm512_or_si512(numbers(0), _mm512_slli_epi32(numbers(1), 16));
                    let tile = (key / STEP * parts + half / 2) * 2 + half % 2;
                    _mm512_storeu_si512(
                        to.as_mut_ptr().add(tile * TILE + key % STEP / 2 * STEP).cast(),
                        pairs,
                    );
                }
            }
        }
    }
}

/// A 16 by 16 matrix of 32-bit numbers, rows and columns exchanged.
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
