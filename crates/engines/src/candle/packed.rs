//! Attention on the CPU over packed sequences, without padding.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};
use rayon::prelude::*;
use sconce_core::batch::Sequence;
use sconce_kernels::attention::{AttentionHead, AttentionMask, AttentionScratch, ScoreBias};
use sconce_kernels::isa::Isa;

use super::fused::values;
use crate::head_layout::HeadLayout;
use crate::positional::bias_table::BiasTable;
use crate::positional::disentangled::{PackedRelativeProjections, RelativeScratch};

/// Self-attention of packed sequences: rows of queries, keys and values to `[tokens, heads · head_dim]`.
pub(super) struct PackedAttention {
    pub(super) sequences: Arc<[Sequence]>,
    pub(super) heads: HeadLayout,
    pub(super) scale: f32,
    /// Scores are squashed into this range by tanh.
    pub(super) softcap: Option<f32>,
    pub(super) mask: AttentionMask,
    pub(super) biases: Option<Arc<BiasTable>>,
    pub(super) relative: Option<Arc<PackedRelativeProjections>>,
    /// Whether the bias is not applied yet.
    pub(super) biased: bool,
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
        let qkv = values(qkv, qkv_layout)?;
        let bias = values(bias, bias_layout)?;
        let isa = Isa::best();
        let HeadLayout { heads, head_dim: width, .. } = self.heads;
        let (stride, hidden) = (bias.len(), heads * width);
        let tokens = qkv.len() / stride;
        let mut output = vec![0.0; tokens * hidden];
        let longest = self.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0);
        let mut by_head = vec![0.0; longest * hidden];
        for sequence in self.sequences.iter() {
            let length = sequence.length;
            let rows = &qkv[sequence.start * stride..][..length * stride];
            let by_head = &mut by_head[..length * hidden];
            by_head.par_chunks_mut(length * width).enumerate().for_each_init(
                <(AttentionScratch, RelativeScratch)>::default,
                |(scratch, scores), (head, output)| {
                    let at = self.heads.columns(head, stride);
                    let score_bias = match (&self.biases, &self.relative) {
                        (Some(biases), _) => ScoreBias::Relative(biases.head(head)),
                        (None, Some(relative)) => {
                            let parts = [at.offsets[0], at.offsets[1]];
                            ScoreBias::Disentangled(
                                relative.scores(scores, head, rows, stride, parts, self.scale),
                            )
                        }
                        (None, None) => ScoreBias::None,
                    };
                    let bias = self.biased.then_some(bias);
                    let (scale, softcap) = (self.scale, self.softcap);
                    let mask = AttentionMask { visible: sequence.attended(), ..self.mask };
                    AttentionHead { rows, length, at, bias, scale, softcap, mask, score_bias }
                        .attend(isa, scratch, output, width);
                },
            );
            let output = &mut output[sequence.start * hidden..][..length * hidden];
            for (token, row) in output.chunks_exact_mut(hidden).enumerate() {
                for (head, part) in row.chunks_exact_mut(width).enumerate() {
                    part.copy_from_slice(&by_head[(head * length + token) * width..][..width]);
                }
            }
        }
        Ok((CpuStorage::F32(output), Shape::from((tokens, hidden))))
    }
}
