//! CPU kernels for transformers on plain slices: GEMM with prepacked weights, attention over packed sequences, norms.
//! The instruction set is selected at run time; every kernel is tested against plain code.
//!
//! This is the only crate with `unsafe`, and in it only `bf16`, `buffer`, `columns`, `detect`, `memory`, `quant`, `team` and `tile_config` have any.

/// The version of these kernels.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A hash of the kernels' sources. Evidence of other sources is not used.
pub const SOURCES: &str = env!("SCONCE_KERNELS_HASH");

pub mod attention;
pub mod bf16;
pub mod buffer;
pub mod columns;
mod detect;
pub mod gemm;
pub mod isa;
mod kv_blocks;
mod kv_q8;
pub mod math;
pub mod memory;
pub mod paged;
pub mod quant;
pub mod rope;
pub mod rows;
pub mod team;
#[cfg(target_arch = "x86_64")]
mod tile_config;
