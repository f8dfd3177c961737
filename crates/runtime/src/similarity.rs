//! How alike texts are, by what the model makes of them.

use sconce_core::card::Task;
use serde::Serialize;

use crate::answers::Account;
use crate::error::Error;
use crate::late;
use crate::model::Model;
use crate::prompt::Prompt;
use crate::sparse::{sparse_dot, weights};

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

/// The prompts of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimilarityOptions {
    /// The prompt of the text that the others are compared with.
    pub prompt: Prompt,
    /// The prompt of the others.
    pub other_prompt: Prompt,
}

impl Model {
    /// How alike `text` is to each of `others`.
    pub fn similarity<T: AsRef<str> + Sync>(&self, text: &str, others: &[T]) -> Result<Similarities, Error> {
        self.similarity_with(text, others, &SimilarityOptions::default())
    }

    /// How alike `text` is to each of `others`, each after its prompt.
    pub fn similarity_with<T: AsRef<str> + Sync>(
        &self,
        text: &str,
        others: &[T],
        options: &SimilarityOptions,
    ) -> Result<Similarities, Error> {
        let task = self.expect("similarity", &[Task::Embed, Task::Sparse, Task::Tokens])?;
        if task == Task::Tokens {
            if *options != SimilarityOptions::default() {
                return Err(late::no_prompts());
            }
            let (scores, account) = self.best_matches(text, others)?;
            return Ok(Similarities { scores, account });
        }
        let mut tokenized = self.encode_texts(&options.prompt, &[text])?;
        tokenized.extend(self.encode_texts(&options.other_prompt, others)?);
        let mut rows = vec![Vec::new(); tokenized.len()];
        let account = self.answer(&tokenized, |index, row| rows[index] = row.to_vec())?;
        let scores = if task == Task::Sparse {
            let words: Vec<_> = rows.iter().map(|row| weights(row)).collect();
            words[1..].iter().map(|other| sparse_dot(&words[0], other)).collect()
        } else {
            rows[1..].iter().map(|other| cosine(&rows[0], other)).collect()
        };
        Ok(Similarities { scores, account })
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
