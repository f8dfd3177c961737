//! Products of f32 rows with quantized weights. Weights keep their codes and scales; rows are quantized to 16 bits with a scale
//! per 256 inputs, or to 8 bits with a scale per 32 or 256 inputs, which is less accurate and takes half the time. A row of the
//! output depends on its own input row alone, bit for bit, whether vectors or tiles compute it. Rows of bf16 are multiplied
//! with weights that are widened to bf16 on the way, which is faster for many rows; so are rows of f32 where there is AVX2 alone.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_bytes;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_blocks;
#[cfg(target_arch = "x86_64")]
mod avx512_groups;
#[cfg(target_arch = "x86_64")]
mod avx512_rows;
mod byte_codes;
mod codes;
#[cfg(target_arch = "x86_64")]
mod codes_avx512;
#[cfg(target_arch = "x86_64")]
mod floats;
mod format;
#[cfg(target_arch = "x86_64")]
mod instructions;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_bytes;
mod pack;
mod panel;
mod portable;
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod widen;

pub use format::{CodeWidth, QuantFormat, QuantRow};
pub use matrix::QuantMatrix;
pub use rows::{BlockRows, ByteBlocks, ByteRows, PartMut, QuantizedBlock, QuantizedRows};

/// Columns of a panel, whose codes are interleaved.
pub const PANEL: usize = 16;
/// Inputs that share a scale of the activations: a super-block of the formats that have them.
const BLOCK: usize = 256;
/// Inputs of the largest group of a format.
const GROUP: usize = 32;
/// Inputs of the smallest group of a format. Codes are packed in runs of as many inputs.
const RUN: usize = 16;
/// Bytes of four inputs for each column of a panel.
const VECTOR: usize = 4 * PANEL;
