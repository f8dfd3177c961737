//! What is done to the queries and keys of a token between their product and attention: norms by head, and rotation.

use sconce_kernels::attention::Columns;
use sconce_kernels::isa::Isa;
use sconce_kernels::rope::Angles;
use sconce_kernels::rows::{Norm, Spread};

use crate::assembly;
use crate::description::{Description, NormKind};

/// How the heads of a model lie in a row of queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) width: usize,
}

impl Heads {
    pub(crate) fn of(d: &Description) -> Heads {
        Heads { queries: d.heads, keys: d.kv_heads, width: d.head }
    }

    /// Where the numbers of one head of queries lie, in rows that are `stride` apart.
    pub(crate) fn columns(self, head: usize, stride: usize) -> Columns {
        let Heads { queries, keys, width } = self;
        let shared = head / (queries / keys);
        let parts = [head * width, (queries + shared) * width, (queries + keys + shared) * width];
        Columns { stride, head: width, parts }
    }

    /// Norms and rotation of the token at `position`.
    pub(crate) fn prepare(
        self,
        isa: Isa,
        row: &mut [f32],
        position: usize,
        norms: Option<&[Norm; 2]>,
        angles: Option<&Angles>,
    ) {
        let (queries, rest) = row.split_at_mut(self.queries * self.width);
        let keys = &mut rest[..self.keys * self.width];
        if let Some([query, key]) = norms {
            query.apply(isa, queries, self.width);
            key.apply(isa, keys, self.width);
        }
        if let Some(angles) = angles {
            angles.turn(isa, queries, self.width, position);
            angles.turn(isa, keys, self.width, position);
        }
    }
}

/// A norm as the kernels have it.
pub(crate) fn norm(d: &Description, norm: assembly::Norm) -> Norm {
    let spread = match d.norm {
        NormKind::Layer | NormKind::LayerWeight => Spread::Deviation,
        NormKind::Rms | NormKind::RmsLessOne => Spread::Root,
    };
    Norm { spread, weight: norm.weight, shift: norm.shift, epsilon: d.epsilon as f32 }
}
