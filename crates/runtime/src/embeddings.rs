//! Vectors on their way out, with what is to be known about them.

use std::ops::Index;

use sconce_core::placement::Placement;
use serde::Serialize;

use crate::serving::Served;

/// Vectors, one a text, and what is to be known about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    vectors: Vec<Vec<f32>>,
    /// Tokens that were computed.
    pub tokens: usize,
    /// The texts that were longer than the model takes.
    pub truncated: Vec<Truncation>,
    /// The placements that did the work: more than one only if one failed meanwhile.
    pub placements: Vec<Placement>,
    /// The numerics class of each: vectors of one class may be compared with each other.
    pub classes: Vec<String>,
}

/// A text that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Truncation {
    /// Which.
    pub index: usize,
    /// Tokens it has.
    pub tokens: usize,
    /// Tokens that were used.
    pub used: usize,
}

impl Embeddings {
    pub(crate) fn empty(count: usize) -> Embeddings {
        Embeddings {
            vectors: vec![Vec::new(); count],
            tokens: 0,
            truncated: Vec::new(),
            placements: Vec::new(),
            classes: Vec::new(),
        }
    }

    /// Puts the rows of a batch at the places of its `members`.
    pub(crate) fn take(
        &mut self,
        members: &[usize],
        served: Served,
        dimensions: Option<usize>,
        normalizes: bool,
    ) {
        for (&member, row) in members.iter().zip(served.rows.iter()) {
            self.vectors[member] = match dimensions {
                Some(dimensions) if dimensions < row.len() => cut(&row[..dimensions], normalizes),
                Some(_) | None => row.to_vec(),
            };
        }
        if !self.placements.contains(&served.placement) {
            self.placements.push(served.placement);
        }
        if !self.classes.contains(&served.class) {
            self.classes.push(served.class);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// The vectors one by one.
    pub fn iter(&self) -> std::slice::Iter<'_, Vec<f32>> {
        self.vectors.iter()
    }

    /// The vectors, taken.
    pub fn into_vectors(self) -> Vec<Vec<f32>> {
        self.vectors
    }
}

/// The first numbers of a vector, made one long again where the model's vectors are.
fn cut(row: &[f32], normalizes: bool) -> Vec<f32> {
    let norm = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
    let scale = if normalizes && norm > 0.0 { 1.0 / norm } else { 1.0 };
    row.iter().map(|x| x * scale).collect()
}

impl Index<usize> for Embeddings {
    type Output = [f32];

    fn index(&self, index: usize) -> &[f32] {
        &self.vectors[index]
    }
}

impl IntoIterator for Embeddings {
    type Item = Vec<f32>;
    type IntoIter = std::vec::IntoIter<Vec<f32>>;

    fn into_iter(self) -> Self::IntoIter {
        self.vectors.into_iter()
    }
}

impl<'a> IntoIterator for &'a Embeddings {
    type Item = &'a Vec<f32>;
    type IntoIter = std::slice::Iter<'a, Vec<f32>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
