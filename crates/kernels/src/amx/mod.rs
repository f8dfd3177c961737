//! bf16 on matrix tiles (Intel AMX): products with prepacked weights, and attention.
//!
//! Where the processor or the system has no tiles, [`Amx::get`] says so and nothing else here can be called.

mod finish;
mod number;

#[cfg(target_arch = "x86_64")]
mod attention;
#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(not(target_arch = "x86_64"))]
mod absent;

pub use finish::Finish;
pub use number::{narrow, widen};

#[cfg(target_arch = "x86_64")]
pub use {
    attention::{HeadBf16, ScratchBf16},
    bf16::norm_rows,
    product::MatrixBf16,
    tiles::{Amx, Tiles},
};

#[cfg(not(target_arch = "x86_64"))]
pub use absent::{Amx, HeadBf16, MatrixBf16, ScratchBf16, Tiles, norm_rows};

/// Rows and columns of bf16 activations are multiples of this.
pub const STEP: usize = 32;
