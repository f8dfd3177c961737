//! Embeddings and their metadata.

use std::ops::Index;

use sconce_core::placement::Placement;

use super::metadata::{OutputMetadata, Truncation, class};

/// One vector per text, with metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    vectors: Vec<Vec<f32>>,
    /// For each vector, the index of its class in `classes`.
    class_of: Vec<usize>,
    /// Number of computed tokens.
    pub tokens: usize,
    /// Texts that exceeded `max_length`.
    pub truncated: Vec<Truncation>,
    /// Placements that computed the vectors: several only if one failed in the meantime.
    pub placements: Vec<Placement>,
    /// Numerics classes of the vectors. Vectors of one class are comparable.
    pub classes: Vec<String>,
}

impl Embeddings {
    pub(crate) fn new(vectors: Vec<Vec<f32>>, metadata: OutputMetadata) -> Embeddings {
        let OutputMetadata { tokens, truncated, placements, classes, class_of } = metadata;
        Embeddings { vectors, class_of, tokens, truncated, placements, classes }
    }

    /// The metadata.
    pub fn metadata(&self) -> OutputMetadata {
        OutputMetadata {
            tokens: self.tokens,
            truncated: self.truncated.clone(),
            placements: self.placements.clone(),
            classes: self.classes.clone(),
            class_of: self.class_of.clone(),
        }
    }

    /// Numerics class of the vector at `index`.
    pub fn class(&self, index: usize) -> &str {
        class(&self.classes, &self.class_of, index)
    }

    /// Number of vectors.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Whether there are no vectors.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Iterates over the vectors.
    pub fn iter(&self) -> std::slice::Iter<'_, Vec<f32>> {
        self.vectors.iter()
    }

    /// The vectors, without metadata.
    pub fn into_vectors(self) -> Vec<Vec<f32>> {
        self.vectors
    }
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
    fn embeddings_give_out_what_they_hold() {
        let truncated = vec![Truncation { index: 1, tokens: 9, used: 8 }];
        let classes = vec!["a".to_owned(), "b".to_owned()];
        let metadata = OutputMetadata {
            tokens: 10,
            truncated,
            classes,
            class_of: vec![1, 0],
            ..OutputMetadata::default()
        };
        let vectors = vec![vec![1.0, 2.0], vec![3.0, 4.0]];
        let embeddings = Embeddings::new(vectors.clone(), metadata.clone());
        assert_eq!(embeddings.metadata(), metadata);
        assert_eq!((embeddings.len(), embeddings.is_empty()), (2, false));
        assert_eq!([embeddings.class(0), embeddings.class(1), embeddings.class(2)], ["b", "a", ""]);
        assert_eq!(embeddings[1], [3.0, 4.0]);
        assert!(embeddings.iter().eq(&vectors) && (&embeddings).into_iter().eq(&vectors));
        assert!(embeddings.clone().into_iter().eq(vectors.clone()));
        assert_eq!(embeddings.into_vectors(), vectors);
        let none = Embeddings::new(Vec::new(), OutputMetadata::default());
        assert_eq!((none.len(), none.is_empty()), (0, true));
    }
}
