//! What a placement's vectors are worth: how near they lie to the reference's, and whether they rank texts alike.

use std::fmt;

use sconce_core::batch::Rows;
use serde::{Deserialize, Serialize};

/// Texts of many kinds, in pairs and threes that mean nearly the same, so that there is something to rank.
const SENTENCES: &str = include_str!("../data/sentences.txt");

/// The texts that receipts are made with.
pub fn sentences() -> impl Iterator<Item = &'static str> {
    SENTENCES.lines()
}

/// How a placement's vectors of the sample compare with the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// How many texts.
    pub texts: usize,
    /// The least cosine between a text's two vectors.
    pub least: f64,
    /// The mean cosine.
    pub mean: f64,
    /// How alike each text ranks all others by nearness: Spearman's coefficient, the mean over the texts.
    pub ranks: f64,
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receipt { texts, least, mean, ranks } = self;
        write!(
            f,
            "cosine {least:.4} at least and {mean:.4} on average over {texts} texts, ranks alike to {ranks:.4}"
        )
    }
}

/// The receipt for `rows`; none where a number is not finite, or there are too few rows to rank.
pub fn receipt(rows: &Rows, reference: &Rows) -> Option<Receipt> {
    let texts = rows.iter().len();
    if texts < 3 || rows.width != reference.width || texts != reference.iter().len() {
        return None;
    }
    let cosines: Vec<f64> = rows.iter().zip(reference.iter()).map(|(a, b)| cosine(a, b)).collect();
    let here: Vec<&[f32]> = rows.iter().collect();
    let there: Vec<&[f32]> = reference.iter().collect();
    let alike = (0..texts).map(|text| spearman(&ranks(&here, text), &ranks(&there, text)));
    let receipt = Receipt {
        texts,
        least: cosines.iter().copied().fold(f64::INFINITY, f64::min),
        mean: cosines.iter().sum::<f64>() / texts as f64,
        ranks: alike.sum::<f64>() / texts as f64,
    };
    // A sum keeps what `min` would drop.
    receipt.mean.is_finite().then_some(receipt)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The place of every other row in the order of nearness to row `of`.
fn ranks(rows: &[&[f32]], of: usize) -> Vec<f64> {
    let near: Vec<f64> =
        rows.iter().enumerate().filter(|(row, _)| *row != of).map(|(_, row)| cosine(rows[of], row)).collect();
    let mut order: Vec<usize> = (0..near.len()).collect();
    order.sort_by(|&a, &b| near[b].total_cmp(&near[a]));
    let mut places = vec![0.0; near.len()];
    for (place, &row) in order.iter().enumerate() {
        places[row] = place as f64;
    }
    places
}

/// Spearman's rank correlation of two orders of the same things, without ties.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let count = a.len() as f64;
    let apart: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    1.0 - 6.0 * apart / (count * (count * count - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[f32]) -> Rows {
        Rows { width: 2, values: values.to_vec(), norms: Vec::new() }
    }

    #[test]
    fn equal_vectors_have_a_perfect_receipt_and_longer_ones_too() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let longer = rows(&some.values.iter().map(|x| 3.0 * x).collect::<Vec<_>>());
        for other in [&some, &longer] {
            let receipt = receipt(other, &some).expect("four rows rank");
            assert!((receipt.least - 1.0).abs() < 1e-9 && (receipt.mean - 1.0).abs() < 1e-9, "{receipt:?}");
            assert!((receipt.ranks - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn one_text_that_strays_shows_in_the_least_and_in_the_ranks() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let other = rows(&[1.0, 0.0, -0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let receipt = receipt(&other, &some).expect("four rows rank");
        assert!(receipt.least < 0.0 && receipt.mean > receipt.least && receipt.ranks < 0.9, "{receipt:?}");
    }

    #[test]
    fn what_is_not_finite_has_no_receipt() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0]);
        for wrong in [&[f32::NAN, 0.0, 0.8, 0.6, 0.0, 1.0][..], &[0.0, 0.0, 0.8, 0.6, 0.0, 1.0], &[1.0, 0.0]]
        {
            assert_eq!(receipt(&rows(wrong), &some), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_sample_has_texts_of_unlike_lengths_and_none_twice() {
        let all: Vec<&str> = sentences().collect();
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(all.len(), once.len());
        assert!(all.len() >= 40 && all.iter().all(|text| !text.trim().is_empty()));
    }
}
