//! The layout of attention heads in QKV rows, QK norms and rotary embedding.

use sconce_kernels::attention::QkvColumns;
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Norm, NormStatistics};

use crate::assembly;
use crate::description::{Description, NormKind};

/// The layout of attention heads in a row of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLayout {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl HeadLayout {
    pub(crate) fn of(d: &Description) -> HeadLayout {
        HeadLayout { heads: d.heads, kv_heads: d.kv_heads, head_dim: d.head_dim }
    }

    /// The columns of one query head and of its KV head.
    pub(crate) fn columns(self, head: usize, stride: usize) -> QkvColumns {
        let HeadLayout { heads, kv_heads, head_dim } = self;
        let shared = head / (heads / kv_heads);
        let offsets = [head * head_dim, (heads + shared) * head_dim, (heads + kv_heads + shared) * head_dim];
        QkvColumns { stride, head_dim, offsets }
    }

    /// Applies QK norms and rotary embedding to the token at `position`.
    pub(crate) fn qk_norm_rope(
        self,
        isa: Isa,
        row: &mut [f32],
        position: usize,
        norms: Option<&[Norm; 2]>,
        rope_table: Option<&RopeTable>,
    ) {
        let (queries, rest) = row.split_at_mut(self.heads * self.head_dim);
        let keys = &mut rest[..self.kv_heads * self.head_dim];
        if let Some([query, key]) = norms {
            query.apply(isa, queries, self.head_dim);
            key.apply(isa, keys, self.head_dim);
        }
        if let Some(rope_table) = rope_table {
            rope_table.rotate(isa, queries, self.head_dim, position);
            rope_table.rotate(isa, keys, self.head_dim, position);
        }
    }
}

/// Converts a norm for the kernels.
pub(crate) fn norm(d: &Description, norm: assembly::Norm) -> Norm {
    let statistics = match d.norm {
        NormKind::Layer | NormKind::LayerWeight => NormStatistics::MeanVariance,
        NormKind::Rms | NormKind::RmsLessOne => NormStatistics::MeanSquare,
    };
    Norm { statistics, weight: norm.weight, shift: norm.shift, epsilon: d.epsilon as f32 }
}
