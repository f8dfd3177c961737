//! Quantized weights as bf16 tiles.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_cvtne2ps_pbh, _mm512_fmadd_ps,
    _mm512_fmsub_ps, _mm512_load_si512, _mm512_mask_permutexvar_epi8, _mm512_maskz_permutexvar_epi8,
    _mm512_mul_ps, _mm512_permutexvar_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setr_epi32,
    _mm512_storeu_si512,
};
use std::ops::Range;

use super::avx512::{GroupFactors, vectors};
use super::format::CodeWidth;
use super::matrix::QuantMatrix;
use super::{PANEL, RUN};
use crate::buffer::Line;

/// Inputs of a tile.
const INPUTS: usize = 32;
/// Values of a row of a tile: two inputs of each output.
const ROW: usize = 2 * PANEL;
/// Values of a tile.
const TILE: usize = INPUTS / 2 * ROW;

/// The code in byte 2 of a word, of which the other bytes are those of 0.5, makes the float `0.5 + code / 256`, if the code
/// has less than eight bits.
const HALF: i32 = 0x3f00_0000;
const BYTE: u64 = 0x4444_4444_4444_4444;

impl QuantMatrix {
    /// Writes the weights of 32 outputs for some steps of 32 inputs as bf16, two tiles per step: 16 pairs of inputs, each of
    /// 16 outputs.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi,fma")]
    pub(crate) fn widen(&self, panel: usize, steps: Range<usize>, to: &mut [u16]) {
        let format = self.format;
        let groups_per_tile = INPUTS / format.group;
        let (groups, codes) = self.groups(steps);
        for half in 0..2 {
            let panel = self.panel(2 * panel + half);
            let mut factors = GroupFactors::from(&panel, groups.start);
            for (group, codes) in panel.codes[codes.clone()].chunks_exact(format.group_bytes()).enumerate() {
                let factors = factors.next();
                let tile = &mut to[(group / groups_per_tile * 2 + half) * TILE..][..TILE];
                // Four inputs are two rows.
                let rows = &mut tile[group % groups_per_tile * (TILE / groups_per_tile)..];
                let (words, _) = rows.as_chunks_mut::<{ 2 * ROW }>();
                match format.width {
                    CodeWidth::Four => widen_runs::<{ CodeWidth::Four.run_bytes() }>(codes, factors, words),
                    CodeWidth::Six => widen_runs::<{ CodeWidth::Six.run_bytes() }>(codes, factors, words),
                    CodeWidth::Eight => widen_runs::<{ CodeWidth::Eight.run_bytes() }>(codes, factors, words),
                }
            }
        }
    }

    /// The lines of the codes of 32 outputs for some steps: those of each panel.
    pub(crate) fn code_lines(&self, panel: usize, steps: Range<usize>) -> [&[Line]; 2] {
        let (_, codes) = self.groups(steps);
        let size = self.inputs / self.format.group * self.format.group_bytes();
        [0, 1].map(|half| {
            let lines = self.codes.lines_from((2 * panel + half) * size + codes.start);
            &lines[..lines.len().min(codes.len() / Line::of::<u8>())]
        })
    }

    /// The groups of some steps, and their codes in a panel.
    fn groups(&self, steps: Range<usize>) -> (Range<usize>, Range<usize>) {
        let per_step = INPUTS / self.format.group;
        let groups = steps.start * per_step..steps.end * per_step;
        let bytes = self.format.group_bytes();
        (groups.clone(), groups.start * bytes..groups.end * bytes)
    }
}

/// The weights of a group, whose runs have `BYTES` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,avx512vbmi,fma")]
#[inline]
fn widen_runs<const BYTES: usize>(codes: &[u8], [scale, minimum]: [__m512; 2], to: &mut [[u16; 2 * ROW]]) {
    let is_short = BYTES < CodeWidth::Eight.run_bytes();
    // Of short codes, `256 · scale · (0.5 + code / 256) - (128 · scale + minimum)`.
    let (scale, minimum) = if is_short {
        (_mm512_mul_ps(scale, _mm512_set1_ps(256.0)), _mm512_fmadd_ps(scale, _mm512_set1_ps(128.0), minimum))
    } else {
        (scale, minimum)
    };
    // Of both inputs of each output.
    let twice = [
        _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15),
    ];
    let factors = [
        [_mm512_permutexvar_ps(twice[0], scale), _mm512_permutexvar_ps(twice[0], minimum)],
        [_mm512_permutexvar_ps(twice[1], scale), _mm512_permutexvar_ps(twice[1], minimum)],
    ];
    for (codes, to) in codes.as_chunks::<BYTES>().0.iter().zip(to.as_chunks_mut::<{ RUN / 4 }>().0) {
        let codes = vectors(codes);
        for (codes, to) in codes.into_iter().zip(to) {
            let [first, second] = to.as_chunks_mut::<ROW>().0 else { continue };
            if is_short {
                widen_pair::<0, true>(codes, factors, first);
                widen_pair::<1, true>(codes, factors, second);
            } else {
                widen_pair::<0, false>(codes, factors, first);
                widen_pair::<1, false>(codes, factors, second);
            }
        }
    }
}

/// The weights of inputs `2 · PAIR` and `2 · PAIR + 1` of four inputs of 16 outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16,avx512vbmi,fma")]
#[inline]
fn widen_pair<const PAIR: usize, const SHORT: bool>(
    codes: __m512i,
    [low, high]: [[__m512; 2]; 2],
    to: &mut [u16; ROW],
) {
    let low = widen_half::<SHORT>(codes, &ORDERS[PAIR][0], low);
    let high = widen_half::<SHORT>(codes, &ORDERS[PAIR][1], high);
    // SAFETY: 32 short values are one vector, and both types have its bits.
    unsafe {
        let weights: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
        _mm512_storeu_si512(to.as_mut_ptr().cast(), weights);
    }
}

/// The weights of two inputs of eight outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,fma")]
#[inline]
fn widen_half<const SHORT: bool>(codes: __m512i, order: &Bytes, [scale, minimum]: [__m512; 2]) -> __m512 {
    // SAFETY: 64 bytes are one vector.
    let order = unsafe { _mm512_load_si512(order.0.as_ptr().cast()) };
    let codes = if SHORT {
        let half = _mm512_set1_epi32(HALF);
        _mm512_castsi512_ps(_mm512_mask_permutexvar_epi8(half, BYTE, order, codes))
    } else {
        _mm512_cvtepi32_ps(_mm512_maskz_permutexvar_epi8(BYTE >> 2, order, codes))
    };
    _mm512_fmsub_ps(codes, scale, minimum)
}

/// The bytes of a vector.
#[repr(align(64))]
struct Bytes([u8; 64]);

/// For each pair of inputs and each half of the outputs: the place of each code among the four inputs of 16 outputs.
static ORDERS: [[Bytes; 2]; 2] = [[order(0, 0), order(0, 1)], [order(1, 0), order(1, 1)]];

const fn order(pair: usize, half: usize) -> Bytes {
    let mut order = [0; 64];
    let mut at = 0;
    while at < order.len() {
        let word = at / 4;
        order[at] = (4 * (half * PANEL / 2 + word / 2) + 2 * pair + word % 2) as u8;
        at += 1;
    }
    Bytes(order)
}
