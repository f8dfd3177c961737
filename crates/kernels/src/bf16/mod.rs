//! bf16 kernels on AMX tiles or AVX-512 bf16 vectors: GEMM with prepacked weights, and attention.
//!
//! [`Bf16::of`] returns none if the processor or the system has neither; nothing else here can be called then.

mod attention_head;
mod convert;
mod epilogue;
mod input;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only tiles and vectors read them"))]
mod panels;

#[cfg(target_arch = "x86_64")]
mod attention;
#[cfg(target_arch = "x86_64")]
mod emulated;
#[cfg(target_arch = "x86_64")]
mod gate;
#[cfg(target_arch = "x86_64")]
mod gemm;
#[cfg(target_arch = "x86_64")]
mod norm;
#[cfg(target_arch = "x86_64")]
mod paged;
#[cfg(target_arch = "x86_64")]
mod pipeline;
#[cfg(target_arch = "x86_64")]
mod quantized;
#[cfg(target_arch = "x86_64")]
mod rows;
#[cfg(target_arch = "x86_64")]
mod softmax;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vectors;

#[cfg(not(target_arch = "x86_64"))]
mod no_tiles;
#[cfg(not(target_arch = "x86_64"))]
mod unsupported;

pub use attention_head::AttentionHeadBf16;
pub use convert::{narrow, widen};
pub use epilogue::EpilogueBf16;
pub use input::InputBf16;
pub use panels::{Panels, PanelsMut, STEP};

#[cfg(target_arch = "x86_64")]
pub use {
    attention::AttentionScratchBf16,
    gate::{add_rows, gate_rows},
    gemm::MatrixBf16,
    norm::norm_rows,
    rows::{narrow_heads, widen_heads},
    tiles::{Bf16, Tiles},
};

#[cfg(not(target_arch = "x86_64"))]
pub use {
    no_tiles::{Bf16, Tiles},
    unsupported::{
        AttentionScratchBf16, MatrixBf16, add_rows, gate_rows, narrow_heads, norm_rows, widen_heads,
    },
};
