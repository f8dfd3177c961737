//! Rotary position embedding of one row.

use crate::isa::{Isa, Vectorized};

/// Cosines and sines of every position up to a maximum length.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Cosines, `pairs` per position.
    pub cosines: Vec<f32>,
    /// Sines, `pairs` per position.
    pub sines: Vec<f32>,
    /// Rotated pairs of values per head; the remaining values stay unchanged.
    pub pairs: usize,
    /// Whether a pair is adjacent (interleaved), or split over the two halves of the rotary dimension.
    pub interleaved: bool,
}

impl RopeTable {
    /// Rotates the heads in `row`, the token at `position`.
    pub fn rotate(&self, isa: Isa, row: &mut [f32], head_dim: usize, position: usize) {
        isa.run(Rotate(self, row, head_dim, position));
    }
}

struct Rotate<'a>(&'a RopeTable, &'a mut [f32], usize, usize);

impl Vectorized for Rotate<'_> {
    #[inline(always)]
    fn run(self) {
        let Rotate(table, row, head_dim, position) = self;
        let place = position * table.pairs..(position + 1) * table.pairs;
        let (cosines, sines) = (&table.cosines[place.clone()], &table.sines[place]);
        for values in row.chunks_exact_mut(head_dim) {
            if table.interleaved {
                rotate_interleaved(values, cosines, sines);
            } else {
                rotate_halves(values, cosines, sines);
            }
        }
    }
}

#[inline(always)]
fn rotate_halves(values: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (first, second) = values[..2 * cosines.len()].split_at_mut(cosines.len());
    for (((a, b), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cosine - *b * sine, *b * cosine + *a * sine);
    }
}

#[inline(always)]
fn rotate_interleaved(values: &mut [f32], cosines: &[f32], sines: &[f32]) {
    for ((pair, cosine), sine) in values.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines) {
        let [a, b] = *pair;
        *pair = [a * cosine - b * sine, b * cosine + a * sine];
    }
}
