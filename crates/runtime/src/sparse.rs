//! Texts as weights of words, most of them zero.

use sconce_core::card::Task;
use serde::Serialize;

use crate::answers::Account;
use crate::error::Error;
use crate::model::{EmbedOptions, Model};

/// Weights of words, one list a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SparseEmbeddings {
    /// For each text the words whose weight is above zero, by their id.
    pub texts: Vec<Vec<Weight>>,
    /// How it came about.
    #[serde(flatten)]
    pub account: Account,
}

/// The weight of a word.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Weight {
    /// The word's id in the model's vocabulary.
    pub index: u32,
    /// Its weight.
    pub value: f32,
}

impl Model {
    /// The weights of words for each text.
    pub fn embed_sparse<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
    ) -> Result<SparseEmbeddings, Error> {
        self.expect("embed_sparse", &[Task::Sparse])?;
        if let Some(dimensions) = options.dimensions {
            return Err(Error::Request(format!(
                "weights of words are not cut; asked for `dimensions`: {dimensions}"
            )));
        }
        let tokenized = self.encode_texts(&options.prompt, texts)?;
        let mut texts = vec![Vec::new(); tokenized.len()];
        let account = self.answer(&tokenized, |index, row| texts[index] = weights(row))?;
        Ok(SparseEmbeddings { texts, account })
    }

    /// The spelling of a word in the model's vocabulary.
    pub fn word(&self, index: u32) -> Option<String> {
        self.tokens().tokenizer.id_to_token(index)
    }
}

/// What is above zero in a row.
pub fn weights(row: &[f32]) -> Vec<Weight> {
    let numbered = (0..).zip(row.iter().copied());
    numbered.filter(|(_, value)| *value > 0.0).map(|(index, value)| Weight { index, value }).collect()
}

/// The sum over the words that both have; both are sorted by word.
pub fn sparse_dot(a: &[Weight], b: &[Weight]) -> f32 {
    let mut b = b.iter().peekable();
    let mut sum = 0.0f64;
    for left in a {
        while b.next_if(|right| right.index < left.index).is_some() {}
        if let Some(right) = b.next_if(|right| right.index == left.index) {
            sum += f64::from(left.value) * f64::from(right.value);
        }
    }
    sum as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_above_zero_is_kept_and_only_shared_words_count() {
        let a = weights(&[0.0, 1.5, 0.0, 2.0, -0.0]);
        assert_eq!(a, [Weight { index: 1, value: 1.5 }, Weight { index: 3, value: 2.0 }]);
        let b = weights(&[4.0, 0.0, 1.0, 0.5]);
        assert!((sparse_dot(&a, &b) - 1.0).abs() < 1e-6);
        assert!((sparse_dot(&b, &a) - 1.0).abs() < 1e-6);
        assert!(sparse_dot(&a, &[]).abs() < 1e-6);
    }
}
