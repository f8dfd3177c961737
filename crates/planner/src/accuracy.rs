//! What a placement's numbers are worth: how near they lie to the reference's, and whether they rank texts alike.

use std::fmt;

use sconce_core::batch::Rows;
use serde::{Deserialize, Serialize};

/// Texts of many kinds, in pairs and threes that mean nearly the same, so that there is something to rank.
const SENTENCES: &str = include_str!("../data/sentences.txt");

/// The texts that accuracies are made with.
pub fn sentences() -> impl Iterator<Item = &'static str> {
    SENTENCES.lines()
}

/// How a placement's answers to the sample compare with the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccuracyReport {
    /// How many texts, or pairs of texts.
    pub texts: usize,
    /// How near the numbers are.
    #[serde(flatten)]
    pub near: Near,
    /// How alike texts are ranked, by Spearman's coefficient: all others by nearness to each text, the mean over the
    /// texts; all texts by each of their scores, the mean over the scores.
    pub ranks: f64,
}

/// How near numbers are to the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Near {
    /// Vectors.
    Vectors {
        /// The least cosine between a text's two vectors.
        least: f64,
        /// The mean cosine.
        mean: f64,
    },
    /// Raw scores.
    Scores {
        /// The largest difference of two scores.
        farthest: f64,
    },
}

impl fmt::Display for AccuracyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccuracyReport { texts, near, ranks } = self;
        match near {
            Near::Vectors { least, mean } => {
                write!(f, "cosine {least:.4} at least and {mean:.4} on average over {texts} texts")?;
            }
            Near::Scores { farthest } => write!(f, "scores {farthest:.4} away at most over {texts} texts")?,
        }
        write!(f, ", ranks alike to {ranks:.4}")
    }
}

fn comparable(rows: &Rows, reference: &Rows) -> Option<usize> {
    let texts = rows.iter().len();
    (texts >= 3 && rows.width == reference.width && texts == reference.iter().len()).then_some(texts)
}

/// The accuracy report for vectors; none where a number is not finite, or there are too few rows to rank.
pub fn of_vectors(rows: &Rows, reference: &Rows) -> Option<AccuracyReport> {
    let texts = comparable(rows, reference)?;
    let cosines: Vec<f64> = rows.iter().zip(reference.iter()).map(|(a, b)| cosine(a, b)).collect();
    let here: Vec<&[f32]> = rows.iter().collect();
    let there: Vec<&[f32]> = reference.iter().collect();
    let alike = (0..texts).map(|text| spearman(&ranks(&here, text), &ranks(&there, text)));
    let ranks = alike.sum::<f64>() / texts as f64;
    let least = cosines.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = cosines.iter().sum::<f64>() / texts as f64;
    // A sum keeps what `min` would drop.
    mean.is_finite().then_some(AccuracyReport { texts, near: Near::Vectors { least, mean }, ranks })
}

/// The accuracy report for raw scores, a row of them for each text; none where a number is not finite, or there are too few.
pub fn of_scores(rows: &Rows, reference: &Rows) -> Option<AccuracyReport> {
    let texts = comparable(rows, reference)?;
    let pairs = rows.values.iter().zip(&reference.values);
    let apart: Vec<f64> = pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).collect();
    let column = |rows: &Rows, label: usize| -> Vec<f64> {
        places(&rows.iter().map(|row| f64::from(row[label])).collect::<Vec<_>>())
    };
    let alike = (0..rows.width).map(|label| spearman(&column(rows, label), &column(reference, label)));
    let ranks = alike.sum::<f64>() / rows.width as f64;
    let farthest = apart.iter().copied().fold(0.0, f64::max);
    let finite = apart.iter().all(|apart| apart.is_finite());
    finite.then_some(AccuracyReport { texts, near: Near::Scores { farthest }, ranks })
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
    places(&near)
}

/// The place of each number in the order from the largest down.
fn places(numbers: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&a, &b| numbers[b].total_cmp(&numbers[a]));
    let mut places = vec![0.0; numbers.len()];
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
            let accuracy = of_vectors(other, &some).expect("four rows rank");
            let Near::Vectors { least, mean } = accuracy.near else { panic!("{accuracy:?}") };
            assert!((least - 1.0).abs() < 1e-9 && (mean - 1.0).abs() < 1e-9, "{accuracy:?}");
            assert!((accuracy.ranks - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn one_text_that_strays_shows_in_the_least_and_in_the_ranks() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let other = rows(&[1.0, 0.0, -0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let accuracy = of_vectors(&other, &some).expect("four rows rank");
        let Near::Vectors { least, mean } = accuracy.near else { panic!("{accuracy:?}") };
        assert!(least < 0.0 && mean > least && accuracy.ranks < 0.9, "{accuracy:?}");
    }

    #[test]
    fn scores_have_the_farthest_and_the_ranks_of_every_label() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let shifted = rows(&some.values.iter().map(|x| x + 0.25).collect::<Vec<_>>());
        let accuracy = of_scores(&shifted, &some).expect("four rows rank");
        let Near::Scores { farthest } = accuracy.near else { panic!("{accuracy:?}") };
        assert!((farthest - 0.25).abs() < 1e-6 && (accuracy.ranks - 1.0).abs() < 1e-9, "{accuracy:?}");
        // The first two texts change places under one of the two labels.
        let swapped = rows(&[0.8, 0.0, 1.0, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let accuracy = of_scores(&swapped, &some).expect("four rows rank");
        assert!((accuracy.ranks - 0.9).abs() < 1e-9, "{accuracy:?}");
        let kept = serde_json::to_string(&accuracy).expect("it can be written");
        assert_eq!(serde_json::from_str::<AccuracyReport>(&kept).expect("it can be read"), accuracy);
    }

    #[test]
    fn what_is_not_finite_has_no_receipt() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0]);
        for wrong in [&[f32::NAN, 0.0, 0.8, 0.6, 0.0, 1.0][..], &[0.0, 0.0, 0.8, 0.6, 0.0, 1.0], &[1.0, 0.0]]
        {
            assert_eq!(of_vectors(&rows(wrong), &some), None, "{wrong:?}");
        }
        for wrong in [&[f32::NAN, 0.0, 0.8, 0.6, 0.0, 1.0][..], &[1.0, 0.0]] {
            assert_eq!(of_scores(&rows(wrong), &some), None, "{wrong:?}");
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
