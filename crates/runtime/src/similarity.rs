//! How alike texts are, by what the model makes of them.

use sconce_core::card::Task;
use serde::Serialize;

use crate::answers::Account;
use crate::error::Error;
use crate::model::{EmbedOptions, Model};
use crate::sparse::sparse_dot;

/// How alike one text is to others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Similarities {
    /// One number for each of the others: the cosine of vectors, the shared weights of words, or the best matches
    /// of tokens.
    pub scores: Vec<f32>,
    /// How it came about; texts are counted from the one that the others are compared with.
    #[serde(flatten)]
    pub account: Account,
}

impl Model {
    /// How alike `text` is to each of `others`.
    pub fn similarity<T: AsRef<str> + Sync>(&self, text: &str, others: &[T]) -> Result<Similarities, Error> {
        let task = self.expect("similarity", &[Task::Embed, Task::Sparse, Task::Tokens])?;
        let all: Vec<&str> = std::iter::once(text).chain(others.iter().map(AsRef::as_ref)).collect();
        let options = EmbedOptions::default();
        match task {
            Task::Tokens => {
                let (scores, account) = self.best_matches(text, others)?;
                Ok(Similarities { scores, account })
            }
            Task::Sparse => {
                let embedded = self.embed_sparse(&all, &options)?;
                let scores = embedded.texts[1..].iter().map(|other| sparse_dot(&embedded.texts[0], other));
                Ok(Similarities { scores: scores.collect(), account: embedded.account })
            }
            Task::Embed | Task::Rerank | Task::Classify => {
                let embedded = self.embed_with(&all, &options)?;
                let scores = (1..all.len()).map(|other| cosine(&embedded[0], &embedded[other])).collect();
                Ok(Similarities { scores, account: embedded.account() })
            }
        }
    }
}

/// The cosine of the angle between two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cosine_does_not_depend_on_lengths() {
        for (a, b, expected) in [
            ([3.0, 4.0], [30.0, 40.0], 1.0),
            ([3.0, 4.0], [-0.3, -0.4], -1.0),
            ([3.0, 4.0], [4.0, -3.0], 0.0),
            ([3.0, 4.0], [2.0, 0.0], 0.6),
            ([0.5, 0.0], [3.0, 4.0], 0.6),
        ] {
            let cosine = cosine(&a, &b);
            assert!((cosine - expected).abs() < 1e-6, "{a:?} and {b:?}: {cosine}");
        }
    }
}
