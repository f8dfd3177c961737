//! Vectors on their way out, with what is to be known about them.

use std::ops::Index;

use sconce_core::placement::Placement;

use crate::answers::{Account, Truncation, class};

/// Vectors, one a text, and what is to be known about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    vectors: Vec<Vec<f32>>,
    /// The place of each vector's class in `classes`.
    class_of: Vec<usize>,
    /// Tokens that were computed.
    pub tokens: usize,
    /// The texts that were longer than the model takes.
    pub truncated: Vec<Truncation>,
    /// The placements that did the work: more than one only if one failed meanwhile.
    pub placements: Vec<Placement>,
    /// The numerics classes of the vectors: those of one class may be compared with each other.
    pub classes: Vec<String>,
}

impl Embeddings {
    pub(crate) fn new(vectors: Vec<Vec<f32>>, account: Account) -> Embeddings {
        let Account { tokens, truncated, placements, classes, class_of } = account;
        Embeddings { vectors, class_of, tokens, truncated, placements, classes }
    }

    /// How they came about.
    pub fn account(&self) -> Account {
        Account {
            tokens: self.tokens,
            truncated: self.truncated.clone(),
            placements: self.placements.clone(),
            classes: self.classes.clone(),
            class_of: self.class_of.clone(),
        }
    }

    /// The numerics class of the vector at `index`.
    pub fn class(&self, index: usize) -> &str {
        class(&self.classes, &self.class_of, index)
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
pub(crate) fn cut(row: &[f32], normalizes: bool) -> Vec<f32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_vector_is_normalized_only_where_the_model_normalizes() {
        assert_eq!(cut(&[3.0, 4.0], true), [0.6, 0.8]);
        assert_eq!(cut(&[3.0, 4.0], false), [3.0, 4.0]);
        assert_eq!(cut(&[0.0, 0.0], true), [0.0, 0.0], "zeros have no direction");
    }

    #[test]
    fn embeddings_give_out_what_they_hold() {
        let truncated = vec![Truncation { index: 1, tokens: 9, used: 8 }];
        let classes = vec!["a".to_owned(), "b".to_owned()];
        let account = Account { tokens: 10, truncated, classes, class_of: vec![1, 0], ..Account::default() };
        let vectors = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        let embeddings = Embeddings::new(vectors.clone(), account.clone());
        assert_eq!(embeddings.account(), account);
        assert_eq!((embeddings.len(), embeddings.is_empty()), (2, false));
        assert_eq!([embeddings.class(0), embeddings.class(1), embeddings.class(2)], ["b", "a", ""]);
        assert_eq!(embeddings[1], [3.0, 4.0]);
        assert!(embeddings.iter().eq(&vectors) && (&embeddings).into_iter().eq(&vectors));
        assert!(embeddings.clone().into_iter().eq(vectors.clone()));
        assert_eq!(embeddings.into_vectors(), vectors);
        let none = Embeddings::new(Vec::new(), Account::default());
        assert_eq!((none.len(), none.is_empty()), (0, true));
    }
}
