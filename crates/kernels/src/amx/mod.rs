//! bf16 on matrix tiles (Intel AMX): products with prepacked weights, and attention.
//!
//! Where the processor or the system has no tiles, [`Amx::get`] says so and nothing else here can be called.

#[cfg(target_arch = "x86_64")]
mod attention;
#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod tiles;

#[cfg(target_arch = "x86_64")]
pub use {
    attention::{HeadBf16, ScratchBf16},
    bf16::{norm_rows, widen},
    product::{MatrixBf16, StoreBf16, narrow},
    tiles::{Amx, Tiles},
};

/// Rows and columns of bf16 activations are multiples of this.
pub const STEP: usize = 32;

/// No tiles on this processor family.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug)]
pub struct Amx(std::convert::Infallible);

#[cfg(not(target_arch = "x86_64"))]
impl Amx {
    /// None.
    pub fn get() -> Option<Amx> {
        None
    }
}
