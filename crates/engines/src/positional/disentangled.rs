//! Disentangled attention (DeBERTa): content-to-position and position-to-content scores.

use sconce_kernels::attention::DisentangledScores;
use sconce_kernels::gemm::{GemmScratch, PackedMatrix};
use sconce_kernels::isa::Isa;
use serde::Serialize;

/// Disentangled attention as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a model has or has not")]
pub struct DisentangledAttention {
    /// Half the rows of the relative position embeddings (`pos_ebd_size` in transformers).
    pub pos_ebd_size: usize,
    /// Number of logarithmic buckets; none if every distance has its own row.
    pub buckets: Option<usize>,
    /// The distance of the last bucket.
    pub max_distance: usize,
    /// Whether content-to-position scores are added.
    pub c2p: bool,
    /// Whether position-to-content scores are added.
    pub p2c: bool,
    /// Whether the relative position embeddings are normalized.
    pub norm_embeddings: bool,
    /// Whether relative positions share the projections of the tokens.
    pub share_att_key: bool,
}

impl DisentangledAttention {
    /// The bucket of a distance, query position minus key position.
    pub(crate) fn bucket(&self, distance: isize) -> u32 {
        let place = self.bucketed(distance) + self.pos_ebd_size.cast_signed();
        place.clamp(0, 2 * self.pos_ebd_size.cast_signed() - 1) as u32
    }

    fn bucketed(&self, distance: isize) -> isize {
        let Some(buckets) = self.buckets else { return distance };
        let middle = (buckets / 2).cast_signed();
        if distance.abs() <= middle {
            return distance;
        }
        let (away, half) = (distance.abs() as f32, middle as f32);
        let last = ((self.max_distance - 1) as f32 / half).ln();
        let beyond = ((away / half).ln() / last * (half - 1.0)).ceil() as isize;
        distance.signum() * (beyond + middle)
    }

    /// The bucket of every distance from `-(positions-1)` to `positions-1`.
    pub(crate) fn buckets(&self, positions: usize) -> Vec<u32> {
        let last = positions.cast_signed() - 1;
        (-last..=last).map(|distance| self.bucket(distance)).collect()
    }
}

/// A layer's projections of relative positions, `[buckets, heads · head_dim]`.
pub(crate) struct RelativeProjections {
    /// Keys, for content-to-position scores.
    pub(crate) keys: Option<Vec<f32>>,
    /// Queries, for position-to-content scores.
    pub(crate) queries: Option<Vec<f32>>,
}

/// A layer's projections of relative positions, packed per head.
pub(crate) struct PackedRelativeProjections {
    keys: Option<Vec<PackedMatrix>>,
    queries: Option<Vec<PackedMatrix>>,
    buckets: usize,
    bucket_of: Vec<u32>,
}

/// Scratch memory of one head's relative scores.
#[derive(Default)]
pub(crate) struct RelativeScratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    gemm: GemmScratch,
}

impl RelativeScratch {
    /// Allocated bytes.
    pub(crate) fn bytes(&self) -> usize {
        let RelativeScratch { queries, keys, gemm } = self;
        (queries.capacity() + keys.capacity()) * size_of::<f32>() + gemm.bytes()
    }
}

impl PackedRelativeProjections {
    pub(crate) fn new(
        isa: Isa,
        d: &DisentangledAttention,
        relative: &RelativeProjections,
        head: usize,
        positions: usize,
    ) -> PackedRelativeProjections {
        let buckets = 2 * d.pos_ebd_size;
        let pack = |rows: &Vec<f32>| {
            let width = rows.len() / buckets;
            let one = |first: usize| -> Vec<f32> {
                rows.chunks_exact(width).flat_map(|row| &row[first..first + head]).copied().collect()
            };
            (0..width)
                .step_by(head)
                .map(|first| PackedMatrix::pack(isa, &one(first), buckets, head))
                .collect()
        };
        PackedRelativeProjections {
            keys: relative.keys.as_ref().map(pack),
            queries: relative.queries.as_ref().map(pack),
            buckets,
            bucket_of: d.buckets(positions),
        }
    }

    /// The relative scores of one head, whose queries and keys start at the columns `parts` of `rows`.
    pub(crate) fn scores<'a>(
        &'a self,
        scratch: &'a mut RelativeScratch,
        head: usize,
        rows: &[f32],
        stride: usize,
        parts: [usize; 2],
        scale: f32,
    ) -> DisentangledScores<'a> {
        let RelativeScratch { queries, keys, gemm } = scratch;
        for (which, (relative, to)) in
            [(&self.keys, &mut *queries), (&self.queries, &mut *keys)].into_iter().enumerate()
        {
            let length = rows.len() / stride;
            to.clear();
            to.resize(length * self.buckets, 0.0);
            let Some(matrix) = relative.as_ref().map(|relative| &relative[head]) else { continue };
            let from: Vec<f32> = rows
                .chunks_exact(stride)
                .flat_map(|row| &row[parts[which]..parts[which] + matrix.inputs()])
                .copied()
                .collect();
            matrix.multiply(
                &from,
                matrix.inputs(),
                length,
                gemm,
                &mut |row: usize, column: usize, values: &mut [f32]| {
                    let to = &mut to[row * self.buckets + column..][..values.len()];
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = *value * scale);
                },
            );
        }
        DisentangledScores { queries, keys, buckets: self.buckets, bucket_of: &self.bucket_of }
    }
}
