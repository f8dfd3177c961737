//! bf16 on matrix tiles (Intel AMX), or on vectors of bf16 pairs (AVX-512): products with prepacked weights, and
//! attention.
//!
//! Where the processor or the system has neither, [`Bf16::of`] says so and nothing else here can be called.

mod finish;
mod head;
mod number;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only tiles and vectors read them"))]
mod panels;

#[cfg(target_arch = "x86_64")]
mod attention;
#[cfg(target_arch = "x86_64")]
mod emulated;
#[cfg(target_arch = "x86_64")]
mod gate;
#[cfg(target_arch = "x86_64")]
mod norm;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod softmax;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vectors;

#[cfg(not(target_arch = "x86_64"))]
mod absent;

pub use finish::Finish;
pub use head::HeadBf16;
pub use number::{narrow, widen};
pub use panels::{Panels, PanelsMut};

#[cfg(target_arch = "x86_64")]
pub use {
    attention::ScratchBf16,
    gate::{add_rows, gate_rows},
    norm::norm_rows,
    product::MatrixBf16,
    tiles::{Bf16, Tiles},
};

#[cfg(not(target_arch = "x86_64"))]
pub use absent::{Bf16, MatrixBf16, ScratchBf16, Tiles, add_rows, gate_rows, norm_rows};

/// Rows and columns of bf16 activations are multiples of this.
pub const STEP: usize = 32;
