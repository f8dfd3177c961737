//! Attention on the CPU over packed sequences: each sequence attends to itself alone, and nothing is padded.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape};
use rayon::prelude::*;
use sconce_core::batch::Sequence;
use sconce_kernels::attention::{Added, Head, Reach, Scratch};
use sconce_kernels::isa::Isa;

use super::fused::numbers;
use crate::parts::disentangled::{PackedPlaces, PlaceScores};
use crate::parts::tables::Biases;
use crate::queries::Heads;

/// Self-attention of packed sequences: rows of queries, keys and values, and their bias where they come without it,
/// to `[tokens, heads · head]`.
pub(super) struct PackedAttention {
    pub(super) sequences: Arc<[Sequence]>,
    pub(super) heads: Heads,
    pub(super) scale: f32,
    pub(super) reach: Reach,
    pub(super) biases: Option<Arc<Biases>>,
    pub(super) places: Option<Arc<PackedPlaces>>,
    /// Whether the bias is yet to be added.
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
        let qkv = numbers(qkv, qkv_layout)?;
        let bias = numbers(bias, bias_layout)?;
        let isa = Isa::best();
        let Heads { queries, width, .. } = self.heads;
        let (stride, hidden) = (bias.len(), queries * width);
        let tokens = qkv.len() / stride;
        let mut output = vec![0.0; tokens * hidden];
        let longest = self.sequences.iter().map(|sequence| sequence.length).max().unwrap_or(0);
        let mut by_head = vec![0.0; longest * hidden];
        for sequence in self.sequences.iter() {
            let length = sequence.length;
            let rows = &qkv[sequence.start * stride..][..length * stride];
            let by_head = &mut by_head[..length * hidden];
            by_head.par_chunks_mut(length * width).enumerate().for_each_init(
                <(Scratch, PlaceScores)>::default,
                |(scratch, scores), (head, output)| {
                    let at = self.heads.columns(head, stride);
                    let added = match (&self.biases, &self.places) {
                        (Some(biases), _) => Added::Distances(biases.head(head)),
                        (None, Some(places)) => {
                            let parts = [at.parts[0], at.parts[1]];
                            Added::Disentangled(places.scores(scores, head, rows, stride, parts, self.scale))
                        }
                        (None, None) => Added::None,
                    };
                    let bias = self.biased.then_some(bias);
                    let (scale, reach) = (self.scale, Reach { seen: sequence.seen(), ..self.reach });
                    Head { rows, length, at, bias, scale, reach, added }.attend(isa, scratch, output, width);
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
