//! What is done to the queries and keys of a token between their product and attention: norms by head, and rotation.

use sconce_kernels::attention::QkvColumns;
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::RopeTable;
use sconce_kernels::rows::{Norm, NormStatistics};

use crate::assembly;
use crate::description::{Description, NormKind};

/// How the heads of a model lie in a row of queries, keys and values.
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

    /// Where the numbers of one head of queries lie, in rows that are `stride` apart.
    pub(crate) fn columns(self, head: usize, stride: usize) -> QkvColumns {
        let HeadLayout { queries, keys, width } = self;
        let shared = head / (queries / keys);
        let offsets = [head * width, (queries + shared) * width, (queries + keys + shared) * width];
        QkvColumns { stride, head_dim: width, offsets }
    }

    /// Norms and rotation of the token at `position`.
    pub(crate) fn prepare(
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

/// A norm as the kernels have it.
pub(crate) fn norm(d: &Description, norm: assembly::Norm) -> Norm {
    let statistics = match d.norm {
        NormKind::Layer | NormKind::LayerWeight => NormStatistics::MeanVariance,
        NormKind::Rms | NormKind::RmsLessOne => NormStatistics::MeanSquare,
    };
    Norm { statistics, weight: norm.weight, shift: norm.shift, epsilon: d.epsilon as f32 }
}
