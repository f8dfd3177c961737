//! Attention on the CPU over packed sequences: each sequence attends to itself alone, and nothing is padded.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};
use rayon::prelude::*;
use sconce_core::batch::Sequence;
use sconce_kernels::attention::{Columns, Head, Scratch};
use sconce_kernels::isa::Isa;

use super::fused::numbers;
use crate::relative::Relative;

/// Self-attention of packed sequences: `[tokens, 3·hidden]` queries, keys and values without their bias, and
/// that bias, to `[tokens, hidden]`.
pub(super) struct PackedAttention {
    pub(super) sequences: Arc<[Sequence]>,
    pub(super) heads: usize,
    pub(super) head: usize,
    pub(super) relative: Option<Arc<Relative>>,
}

impl CustomOp2 for PackedAttention {
    fn name(&self) -> &'static str {
        "packed-attention"
    }

    fn cpu_fwd(
        &self,
        qkv: &CpuStorage,
        qkv_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let qkv = numbers(qkv, qkv_layout)?;
        let bias = numbers(bias, bias_layout)?;
        let isa = Isa::best();
        let hidden = self.heads * self.head;
        let tokens = qkv.len() / (3 * hidden);
        let mut output = vec![0.0; tokens * hidden];
        let longest = self.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0);
        let mut by_head = vec![0.0; longest * hidden];
        for sequence in self.sequences.iter() {
            let length = sequence.length;
            let rows = &qkv[sequence.start * 3 * hidden..][..length * 3 * hidden];
            let by_head = &mut by_head[..length * hidden];
            by_head.par_chunks_mut(length * self.head).enumerate().for_each_init(
                Scratch::default,
                |scratch, (head, output)| {
                    let distances = self.relative.as_deref().map(|relative| relative.head(head));
                    let at = Columns { stride: 3 * hidden, hidden, head: self.head, first: head * self.head };
                    Head { rows, length, at, bias: Some(bias), distances }
                        .attend(isa, scratch, output, self.head);
                },
            );
            let output = &mut output[sequence.start * hidden..][..length * hidden];
            for (token, row) in output.chunks_exact_mut(hidden).enumerate() {
                for (head, part) in row.chunks_exact_mut(self.head).enumerate() {
                    part.copy_from_slice(&by_head[(head * length + token) * self.head..][..self.head]);
                }
            }
        }
        Ok((CpuStorage::F32(output), Shape::from((tokens, hidden))))
    }
}
