//! Quantized weights as bf16 tiles.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_cvtne2ps_pbh, _mm512_fmsub_ps,
    _mm512_loadu_si512, _mm512_permutexvar_epi16, _mm512_set1_epi32, _mm512_srli_epi32, _mm512_storeu_si512,
};

use super::avx512::{GroupFactors, vectors};
use super::format::CodeWidth;
use super::matrix::QuantMatrix;
use super::{PANEL, RUN};

/// Inputs of a tile.
const INPUTS: usize = 32;
/// Values of a row of a tile: two inputs of each output.
const ROW: usize = 2 * PANEL;
/// Values of a tile.
const TILE: usize = INPUTS / 2 * ROW;

/// Interleaves two halves of a vector.
static INTERLEAVE: [u16; 2 * PANEL] = {
    let mut order = [0; 2 * PANEL];
    let mut at = 0;
    while at < order.len() {
        order[at] = (at / 2 + at % 2 * PANEL) as u16;
        at += 1;
    }
    order
};

impl QuantMatrix {
    /// Writes the weights of 32 outputs as bf16, two tiles per 32 inputs: 16 pairs of inputs, each of 16 outputs.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
    pub(crate) fn widen(&self, panel: usize, to: &mut [u16]) {
        let format = self.format;
        for half in 0..2 {
            let panel = self.panel(2 * panel + half);
            let mut factors = GroupFactors::of(&panel);
            let groups_per_tile = INPUTS / format.group;
            for (group, codes) in panel.codes.chunks_exact(format.group_bytes()).enumerate() {
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
}

/// The weights of a group, whose runs have `BYTES` bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
#[inline]
fn widen_runs<const BYTES: usize>(codes: &[u8], factors: [__m512; 2], to: &mut [[u16; 2 * ROW]]) {
    for (codes, to) in codes.as_chunks::<BYTES>().0.iter().zip(to.as_chunks_mut::<{ RUN / 4 }>().0) {
        for (codes, to) in vectors(codes).into_iter().zip(to) {
            widen_word(codes, factors, to);
        }
    }
}

/// The weights of four inputs of 16 outputs.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16,fma")]
#[inline]
fn widen_word(codes: __m512i, [scale, minimum]: [__m512; 2], to: &mut [u16; 2 * ROW]) {
    let byte = _mm512_set1_epi32(0xff);
    let weight = |codes: __m512i| _mm512_fmsub_ps(_mm512_cvtepi32_ps(codes), scale, minimum);
    let inputs = [
        weight(_mm512_and_si512(codes, byte)),
        weight(_mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte)),
        weight(_mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte)),
        weight(_mm512_srli_epi32::<24>(codes)),
    ];
    let (rows, _) = to.as_chunks_mut::<ROW>();
    for (pair, row) in inputs.as_chunks::<2>().0.iter().zip(rows) {
        // SAFETY: 32 short values are one vector, and both types have its bits.
        unsafe {
            let order = _mm512_loadu_si512(INTERLEAVE.as_ptr().cast());
            let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(pair[1], pair[0]));
            _mm512_storeu_si512(row.as_mut_ptr().cast(), _mm512_permutexvar_epi16(order, halves));
        }
    }
}
