//! Attention of content to distance and of distance to content: DeBERTa.

use sconce_kernels::attention::Disentangled;
use sconce_kernels::isa::Isa;
use sconce_kernels::product::{Matrix, Space};
use serde::Serialize;

/// Disentangled attention as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a model has or has not")]
pub struct Disentangle {
    /// Half of the kinds of distances: rows of their table are twice as many.
    pub span: usize,
    /// The buckets in which far distances share a kind; none where every distance has its own.
    pub buckets: Option<usize>,
    /// The distance of the last bucket.
    pub max_distance: usize,
    /// Whether content attends to distance.
    pub content_to_place: bool,
    /// Whether distance attends to content.
    pub place_to_content: bool,
    /// Whether the table of distances is normalised.
    pub normed: bool,
    /// Whether distances are projected as tokens are.
    pub shared: bool,
}

impl Disentangle {
    /// The kind of the distance from a query to a key, the query's position less the key's.
    pub(crate) fn kind(&self, distance: isize) -> u32 {
        let place = self.bucketed(distance) + self.span.cast_signed();
        place.clamp(0, 2 * self.span.cast_signed() - 1) as u32
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
    pub(crate) fn kinds(&self, positions: usize) -> Vec<u32> {
        let last = positions.cast_signed() - 1;
        (-last..=last).map(|distance| self.kind(distance)).collect()
    }
}

/// The projections of a layer's distances, `[kinds, heads · head]`: the same for every text.
pub(crate) struct Places {
    /// What content attends to.
    pub(crate) keys: Option<Vec<f32>>,
    /// What attends to content.
    pub(crate) queries: Option<Vec<f32>>,
}

/// The projections of a layer's distances, packed head by head.
pub(crate) struct PackedPlaces {
    keys: Option<Vec<Matrix>>,
    queries: Option<Vec<Matrix>>,
    kinds: usize,
    kind: Vec<u32>,
}

/// Room for one head's scores.
#[derive(Default)]
pub(crate) struct PlaceScores {
    queries: Vec<f32>,
    keys: Vec<f32>,
    space: Space,
}

impl PlaceScores {
    /// Bytes of memory that they hold.
    pub(crate) fn bytes(&self) -> usize {
        let PlaceScores { queries, keys, space } = self;
        (queries.capacity() + keys.capacity()) * size_of::<f32>() + space.bytes()
    }
}

impl PackedPlaces {
    pub(crate) fn new(
        isa: Isa,
        d: &Disentangle,
        places: &Places,
        head: usize,
        positions: usize,
    ) -> PackedPlaces {
        let kinds = 2 * d.span;
        let pack = |rows: &Vec<f32>| {
            let width = rows.len() / kinds;
            let one = |first: usize| -> Vec<f32> {
                rows.chunks_exact(width).flat_map(|row| &row[first..first + head]).copied().collect()
            };
            (0..width).step_by(head).map(|first| Matrix::pack(isa, &one(first), kinds, head)).collect()
        };
        PackedPlaces {
            keys: places.keys.as_ref().map(pack),
            queries: places.queries.as_ref().map(pack),
            kinds,
            kind: d.kinds(positions),
        }
    }

    /// The scores of one head, whose queries and keys begin at the columns `parts` of `rows`.
    pub(crate) fn scores<'a>(
        &'a self,
        room: &'a mut PlaceScores,
        head: usize,
        rows: &[f32],
        stride: usize,
        parts: [usize; 2],
        scale: f32,
    ) -> Disentangled<'a> {
        let PlaceScores { queries, keys, space } = room;
        for (which, (places, to)) in
            [(&self.keys, &mut *queries), (&self.queries, &mut *keys)].into_iter().enumerate()
        {
            let length = rows.len() / stride;
            to.clear();
            to.resize(length * self.kinds, 0.0);
            let Some(matrix) = places.as_ref().map(|places| &places[head]) else { continue };
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
                    let to = &mut to[row * self.kinds + column..][..values.len()];
                    to.iter_mut().zip(values).for_each(|(to, value)| *to = *value * scale);
                },
            );
        }
        Disentangled { queries, keys, kinds: self.kinds, kind: &self.kind }
    }
}
