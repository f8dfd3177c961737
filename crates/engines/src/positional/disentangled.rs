//! Attention of content to distance and of distance to content: DeBERTa.

use sconce_kernels::attention::DisentangledScores;
use sconce_kernels::gemm::{GemmScratch, PackedMatrix};
use sconce_kernels::isa::Isa;
use serde::Serialize;

/// Disentangled attention as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a model has or has not")]
pub struct DisentangledAttention {
    /// Half of the buckets of distances: rows of their table are twice as many.
    pub pos_ebd_size: usize,
    /// The buckets in which far distances share a kind; none where every distance has its own.
    pub buckets: Option<usize>,
    /// The distance of the last bucket.
    pub max_distance: usize,
    /// Whether content attends to distance.
    pub c2p: bool,
    /// Whether distance attends to content.
    pub p2c: bool,
    /// Whether the table of distances is normalised.
    pub norm_embeddings: bool,
    /// Whether distances are projected as tokens are.
    pub share_att_key: bool,
}

impl DisentangledAttention {
    /// The kind of the distance from a query to a key, the query's position less the key's.
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

    /// The kind of every distance from `-(positions-1)` to `positions-1`.
    pub(crate) fn buckets(&self, positions: usize) -> Vec<u32> {
        let last = positions.cast_signed() - 1;
        (-last..=last).map(|distance| self.bucket(distance)).collect()
    }
}

/// The projections of a layer's distances, `[buckets, heads · head]`: the same for every text.
pub(crate) struct RelativeProjections {
    /// What content attends to.
    pub(crate) keys: Option<Vec<f32>>,
    /// What attends to content.
    pub(crate) queries: Option<Vec<f32>>,
}

/// The projections of a layer's distances, packed head by head.
pub(crate) struct PackedRelativeProjections {
    keys: Option<Vec<PackedMatrix>>,
    queries: Option<Vec<PackedMatrix>>,
    buckets: usize,
    bucket_of: Vec<u32>,
}

/// Room for one head's scores.
#[derive(Default)]
pub(crate) struct RelativeScratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    space: GemmScratch,
}

impl RelativeScratch {
    /// Bytes of memory that they hold.
    pub(crate) fn bytes(&self) -> usize {
        let RelativeScratch { queries, keys, space } = self;
        (queries.capacity() + keys.capacity()) * size_of::<f32>() + space.bytes()
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

    /// The scores of one head, whose queries and keys begin at the columns `parts` of `rows`.
    pub(crate) fn scores<'a>(
        &'a self,
        room: &'a mut RelativeScratch,
        head: usize,
        rows: &[f32],
        stride: usize,
        parts: [usize; 2],
        scale: f32,
    ) -> DisentangledScores<'a> {
        let RelativeScratch { queries, keys, space } = room;
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
                space,
                &mut |row: usize, column: usize, values: &mut [f32]| {
                    let to = &mut to[row * self.buckets + column..][..values.len()];
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = *value * scale);
                },
            );
        }
        DisentangledScores { queries, keys, buckets: self.buckets, bucket_of: &self.bucket_of }
    }
}
