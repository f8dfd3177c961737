//! Products with NEON. Codes and activations are multiplied as 16-bit integers.

use std::arch::aarch64::{
    float32x4_t, int16x8_t, int32x4_t, uint8x16_t, vaddw_s8, vandq_u8, vandq_u32, vcgeq_u32, vcombine_s16,
    vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32, vdupq_n_u8, vdupq_n_u32, vfmaq_f32, vfmsq_f32, vget_high_u8,
    vget_low_s16, vget_low_u8, vld1_s8, vld1_s16, vld1_u16, vld1q_s32, vld1q_u8, vmlal_high_s16, vmlal_s16,
    vmovl_u8, vmovl_u16, vmulq_f32, vorrq_u8, vorrq_u32, vpaddq_s32, vreinterpretq_f32_u32,
    vreinterpretq_s16_u16, vreinterpretq_u32_f32, vshll_n_s8, vshlq_n_u8, vshlq_n_u32, vshrq_n_u8, vst1q_f32,
    vst1q_s16,
};
use std::ops::Range;

use super::format::CodeWidth;
use super::panel::Panel;
use super::rows::{QuantizedRows, SomeRows};
use super::{BLOCK, GROUP, PANEL, RUN, VECTOR};

/// Columns whose sums are in registers at the same time.
const COLUMNS: usize = 8;
/// Columns of a vector of sums.
pub(super) const LANES: usize = 4;

/// The activations of a row's group.
type Inputs = [i16; GROUP];

/// Multiplies some rows with a panel. The first row begins a tile.
pub(super) fn multiply(
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    part: Range<usize>,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    let mut first = part.start;
    while first < part.end {
        // SAFETY: every processor of this architecture has NEON.
        unsafe {
            match part.end - first {
                2.. => some_rows::<2>(panel, rows, &mut first, put),
                _ => some_rows::<1>(panel, rows, &mut first, put),
            }
        }
    }
}

/// Multiplies the next `R` rows with a panel. A row has the same result for every `R`.
#[target_feature(enable = "neon")]
#[inline]
fn some_rows<const R: usize>(
    panel: &Panel<'_>,
    rows: &QuantizedRows,
    first: &mut usize,
    put: &mut (impl FnMut(usize, &[f32; PANEL]) + ?Sized),
) {
    for values in products(panel, rows.some::<R>(*first)) {
        put(*first, &values);
        *first += 1;
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn products<const R: usize>(panel: &Panel<'_>, rows: SomeRows<'_, R>) -> [[f32; PANEL]; R] {
    let format = panel.format;
    let mut sums = [[vdupq_n_f32(0.0); PANEL / LANES]; R];
    for (group, codes) in panel.codes.chunks_exact(format.group_bytes()).enumerate() {
        let first = group * format.group;
        let (blocks, first) = (rows.block(first / BLOCK), first % BLOCK);
        let half = first % GROUP / 16;
        let inputs = blocks.each_ref().map(|block| inputs(block.group(first / GROUP)));
        for columns in 0..PANEL / COLUMNS {
            let mut dots = [[vdupq_n_s32(0); COLUMNS]; R];
            for (run, codes) in codes.chunks_exact(format.width.run_bytes()).enumerate() {
                for word in 0..RUN / 4 {
                    let codes = vector(format.width, codes, word, columns);
                    add(&mut dots, codes, &inputs, (half + run) * RUN / 4 + word);
                }
            }
            for lanes in 0..COLUMNS / LANES {
                let place = columns * COLUMNS / LANES + lanes;
                let [scale, minimum] = factors(panel, group, place);
                for ((sums, dots), block) in sums.iter_mut().zip(&dots).zip(blocks) {
                    let dot = vcvtq_f32_s32(joined(&dots[lanes * LANES..][..LANES]));
                    let total = vdupq_n_f32(block.sum(format.group, first / format.group));
                    let part = vfmsq_f32(vmulq_f32(dot, scale), minimum, total);
                    sums[place] = vfmaq_f32(sums[place], part, vdupq_n_f32(block.scale));
                }
            }
        }
    }
    sums.map(|sums| values(sums))
}

/// The 16 values of four vectors.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn values(vectors: [float32x4_t; PANEL / LANES]) -> [f32; PANEL] {
    let mut values = [0.0; PANEL];
    for (values, vector) in values.as_chunks_mut::<LANES>().0.iter_mut().zip(vectors) {
        // SAFETY: four values are one vector.
        unsafe { vst1q_f32(values.as_mut_ptr(), vector) };
    }
    values
}

/// Adds the products of four inputs to the sums of eight columns, which have a part per input.
#[target_feature(enable = "neon")]
#[inline]
fn add<const R: usize>(
    dots: &mut [[int32x4_t; COLUMNS]; R],
    codes: [uint8x16_t; 2],
    inputs: &[Inputs; R],
    word: usize,
) {
    let wide = |codes| vreinterpretq_s16_u16(vmovl_u8(codes));
    let codes: [int16x8_t; 4] = [
        wide(vget_low_u8(codes[0])),
        wide(vget_high_u8(codes[0])),
        wide(vget_low_u8(codes[1])),
        wide(vget_high_u8(codes[1])),
    ];
    for (dots, inputs) in dots.iter_mut().zip(inputs) {
        let inputs: &[i16; 4] = &inputs.as_chunks().0[word];
        // SAFETY: four values are half a vector.
        let inputs = unsafe { vld1_s16(inputs.as_ptr()) };
        let twice = vcombine_s16(inputs, inputs);
        for (dots, codes) in dots.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
            dots[0] = vmlal_s16(dots[0], vget_low_s16(codes), inputs);
            dots[1] = vmlal_high_s16(dots[1], codes, twice);
        }
    }
}

/// The sums of four columns.
#[target_feature(enable = "neon")]
#[inline]
fn joined(dots: &[int32x4_t]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(dots[0], dots[1]), vpaddq_s32(dots[2], dots[3]))
}

/// The activations of a group: `256 · high + low`.
#[target_feature(enable = "neon")]
#[inline]
fn inputs([high, low]: [&[i32; GROUP / 4]; 2]) -> Inputs {
    let mut inputs = [0; GROUP];
    for (part, to) in inputs.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: two words are eight bytes.
        unsafe {
            let high = vld1_s8(high[2 * part..][..2].as_ptr().cast());
            let low = vld1_s8(low[2 * part..][..2].as_ptr().cast());
            vst1q_s16(to.as_mut_ptr(), vaddw_s8(vshll_n_s8::<8>(high), low));
        }
    }
    inputs
}

/// The codes of vector `word` of a run, for half of the columns.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn vector(width: CodeWidth, run: &[u8], word: usize, half: usize) -> [uint8x16_t; 2] {
    let (stored, _) = run.as_chunks::<VECTOR>();
    if width == CodeWidth::Eight {
        return load(&stored[word], half);
    }
    let nibbles = load(&stored[word / 2], half);
    let low = if word % 2 == 0 {
        nibbles.map(|codes| vandq_u8(codes, vdupq_n_u8(0x0f)))
    } else {
        nibbles.map(|codes| vshrq_n_u8::<4>(codes))
    };
    if width == CodeWidth::Four {
        return low;
    }
    let [first, second] = load(&stored[2], half);
    [with_upper(low[0], first, word), with_upper(low[1], second, word)]
}

/// Four bits of codes, with the upper two bits of vector `word`.
#[target_feature(enable = "neon")]
#[inline]
fn with_upper(low: uint8x16_t, upper: uint8x16_t, word: usize) -> uint8x16_t {
    let aligned = match word {
        0 => vshlq_n_u8::<4>(upper),
        1 => vshlq_n_u8::<2>(upper),
        2 => upper,
        _ => vshrq_n_u8::<2>(upper),
    };
    vorrq_u8(low, vandq_u8(aligned, vdupq_n_u8(0x30)))
}

/// Stored codes, for half of the columns.
#[target_feature(enable = "neon")]
#[inline]
fn load(codes: &[u8; VECTOR], half: usize) -> [uint8x16_t; 2] {
    let codes: &[u8; 4 * COLUMNS] = &codes.as_chunks().0[half];
    // SAFETY: 32 bytes are two vectors.
    unsafe { [vld1q_u8(codes.as_ptr()), vld1q_u8(codes.as_ptr().add(16))] }
}

/// Scale and minimum of a group, for the four columns at `place`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn factors(panel: &Panel<'_>, group: usize, place: usize) -> [float32x4_t; 2] {
    let format = panel.format;
    let of_group = |block: usize| block * PANEL / LANES + place;
    let (integer, factor) = (of_group(group), of_group(group / format.groups));
    let mut scale = floats(panel.scales, factor);
    if format.is_super() {
        let values: &[i8; LANES] = &panel.group_scales.as_chunks().0[integer];
        scale = vmulq_f32(scale, integers(values.map(i32::from)));
    }
    let minimum = match (format.has_minimums, format.is_super()) {
        (false, _) => vmulq_f32(scale, vdupq_n_f32(f32::from(format.zero))),
        (true, false) => floats(panel.minimums, factor),
        (true, true) => {
            let values: &[u8; LANES] = &panel.group_minimums.as_chunks().0[integer];
            vmulq_f32(floats(panel.minimums, factor), integers(values.map(i32::from)))
        }
    };
    [scale, minimum]
}

#[target_feature(enable = "neon")]
#[inline]
fn integers(values: [i32; LANES]) -> float32x4_t {
    // SAFETY: four values are one vector.
    vcvtq_f32_s32(unsafe { vld1q_s32(values.as_ptr()) })
}

/// Four f16 values, widened without instructions for f16: the exponent of f32 has another bias.
#[target_feature(enable = "neon")]
#[inline]
fn floats(values: &[u16], at: usize) -> float32x4_t {
    let values: &[u16; LANES] = &values.as_chunks().0[at];
    // SAFETY: four values are half a vector.
    let bits = vmovl_u16(unsafe { vld1_u16(values.as_ptr()) });
    let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
    let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
    let rebiased =
        vmulq_f32(vreinterpretq_f32_u32(magnitude), vdupq_n_f32(f32::from_bits((127 + 112) << 23)));
    // Infinity and NaN have the largest exponent in both.
    let infinite = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
    let exponent = vandq_u32(infinite, vdupq_n_u32(0x7f80_0000));
    let value = vorrq_u32(vreinterpretq_u32_f32(rebiased), exponent);
    vreinterpretq_f32_u32(vorrq_u32(value, sign))
}
