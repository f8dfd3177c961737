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
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) width: usize,
}

impl HeadLayout {
    pub(crate) fn of(d: &Description) -> HeadLayout {
        HeadLayout { queries: d.heads, keys: d.kv_heads, width: d.head_dim }
    }

    /// The columns of one query head and of its KV head.
    pub(crate) fn columns(self, head: usize, stride: usize) -> QkvColumns {
        let HeadLayout { queries, keys, width } = self;
        let shared = head / (queries / keys);
        let offsets = [head * width, (queries + shared) * width, (queries + keys + shared) * width];
        QkvColumns { stride, head_dim: width, offsets }
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
        let (queries, rest) = row.split_at_mut(self.queries * self.width);
        let keys = &mut rest[..self.keys * self.width];
        if let Some([query, key]) = norms {
            query.apply(isa, queries, self.width);
            key.apply(isa, keys, self.width);
        }
        if let Some(rope_table) = rope_table {
            rope_table.rotate(isa, queries, self.width, position);
            rope_table.rotate(isa, keys, self.width, position);
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
