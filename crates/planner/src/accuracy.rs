//! Accuracy reports: similarity of a placement's outputs to the reference's, and agreement of rankings.

use std::fmt;

use sconce_core::batch::Rows;
use sconce_core::probe::Prediction;
use serde::{Deserialize, Serialize};

/// Texts of many kinds, in groups of similar meaning, so that rankings are meaningful.
const SENTENCES: &str = include_str!("../data/sentences.txt");

/// The sample texts of accuracy reports.
pub fn sentences() -> impl Iterator<Item = &'static str> {
    SENTENCES.lines()
}

/// Comparison of a placement's outputs on the sample with the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccuracyReport {
    /// Number of texts or pairs.
    pub texts: usize,
    /// The metric of the task.
    #[serde(flatten)]
    pub metric: AccuracyMetric,
    /// Mean Spearman rank correlation: for vectors, of the other texts by similarity to each text; for scores, of the
    /// texts by each score; for predictions, of the tokens by their probability.
    pub rank_correlation: f64,
}

/// Distance of outputs from the reference's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AccuracyMetric {
    /// Vectors.
    Vectors {
        /// Minimum cosine similarity of corresponding vectors.
        min_cosine: f64,
        /// Mean cosine similarity.
        mean_cosine: f64,
    },
    /// Raw scores.
    Scores {
        /// Largest difference of corresponding scores.
        max_error: f64,
    },
    /// Predictions of the tokens of the texts.
    Predictions {
        /// Number of tokens.
        tokens: usize,
        /// Perplexity of the texts.
        perplexity: f64,
        /// Their perplexity by the reference.
        reference_perplexity: f64,
        /// Share of tokens whose most likely token is the reference's.
        top1_agreement: f64,
    },
}

/// Largest relative difference of perplexities that are alike.
const PERPLEXITY: f64 = 0.02;
/// Smallest share of tokens with the same most likely token of predictions that are alike.
const TOP1_AGREEMENT: f64 = 0.9;

impl AccuracyReport {
    /// Whether predictions are alike: the perplexity differs by at most 2 %, and at least 90 % of tokens have the same most
    /// likely token. None of other outputs.
    pub fn predicts_alike(&self) -> Option<bool> {
        match self.metric {
            AccuracyMetric::Predictions { perplexity, reference_perplexity, top1_agreement, .. } => {
                let difference = (perplexity / reference_perplexity - 1.0).abs();
                Some(difference <= PERPLEXITY && top1_agreement >= TOP1_AGREEMENT)
            }
            AccuracyMetric::Vectors { .. } | AccuracyMetric::Scores { .. } => None,
        }
    }
}

impl fmt::Display for AccuracyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccuracyReport { texts, metric, rank_correlation } = self;
        match metric {
            AccuracyMetric::Vectors { min_cosine, mean_cosine } => {
                write!(
                    f,
                    "cosine {min_cosine:.4} at least and {mean_cosine:.4} on average over {texts} texts"
                )?;
            }
            AccuracyMetric::Scores { max_error } => {
                write!(f, "scores {max_error:.4} away at most over {texts} texts")?;
            }
            AccuracyMetric::Predictions { tokens, perplexity, reference_perplexity, top1_agreement } => {
                let percent = 100.0 * top1_agreement;
                write!(
                    f,
                    "perplexity {perplexity:.3} against {reference_perplexity:.3}, the same top token at \
                     {percent:.1} % of {tokens} tokens"
                )?;
            }
        }
        write!(f, ", rank correlation {rank_correlation:.4}")
    }
}

fn comparable(rows: &Rows, reference: &Rows) -> Option<usize> {
    let texts = rows.iter().len();
    (texts >= 3 && rows.width == reference.width && texts == reference.iter().len()).then_some(texts)
}

/// The accuracy report of vectors; none if a value is not finite or there are fewer than three rows.
pub fn of_vectors(rows: &Rows, reference: &Rows) -> Option<AccuracyReport> {
    let texts = comparable(rows, reference)?;
    let cosines: Vec<f64> = rows.iter().zip(reference.iter()).map(|(a, b)| cosine(a, b)).collect();
    let here: Vec<&[f32]> = rows.iter().collect();
    let there: Vec<&[f32]> = reference.iter().collect();
    let correlations = (0..texts).map(|text| spearman(&ranks(&here, text), &ranks(&there, text)));
    let rank_correlation = correlations.sum::<f64>() / texts as f64;
    let min_cosine = cosines.iter().copied().fold(f64::INFINITY, f64::min);
    let mean_cosine = cosines.iter().sum::<f64>() / texts as f64;
    // The mean keeps a NaN that `min` would drop.
    mean_cosine.is_finite().then_some(AccuracyReport {
        texts,
        metric: AccuracyMetric::Vectors { min_cosine, mean_cosine },
        rank_correlation,
    })
}

/// The accuracy report of scores, one row per text; none if a value is not finite or there are fewer than three rows.
pub fn of_scores(rows: &Rows, reference: &Rows) -> Option<AccuracyReport> {
    let texts = comparable(rows, reference)?;
    let pairs = rows.values.iter().zip(&reference.values);
    let apart: Vec<f64> = pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).collect();
    let column = |rows: &Rows, label: usize| -> Vec<f64> {
        positions(&rows.iter().map(|row| f64::from(row[label])).collect::<Vec<_>>())
    };
    let correlations = (0..rows.width).map(|label| spearman(&column(rows, label), &column(reference, label)));
    let rank_correlation = correlations.sum::<f64>() / rows.width as f64;
    let max_error = apart.iter().copied().fold(0.0, f64::max);
    let finite = apart.iter().all(|apart| apart.is_finite());
    finite.then_some(AccuracyReport { texts, metric: AccuracyMetric::Scores { max_error }, rank_correlation })
}

/// The accuracy report of predictions over `texts` texts; none if a log probability is not finite or there are fewer than
/// three tokens.
pub fn of_predictions(
    texts: usize,
    predictions: &[Prediction],
    reference: &[Prediction],
) -> Option<AccuracyReport> {
    let tokens = predictions.len();
    if tokens < 3 || tokens != reference.len() {
        return None;
    }
    let logprobs = |predictions: &[Prediction]| -> Vec<f64> {
        predictions.iter().map(|prediction| f64::from(prediction.logprob)).collect()
    };
    let (here, there) = (logprobs(predictions), logprobs(reference));
    let perplexity = |logprobs: &[f64]| (-logprobs.iter().sum::<f64>() / tokens as f64).exp();
    let same = predictions.iter().zip(reference).filter(|(one, other)| one.top == other.top).count();
    let metric = AccuracyMetric::Predictions {
        tokens,
        perplexity: perplexity(&here),
        reference_perplexity: perplexity(&there),
        top1_agreement: same as f64 / tokens as f64,
    };
    let rank_correlation = spearman(&positions(&here), &positions(&there));
    let finite = here.iter().chain(&there).all(|logprob| logprob.is_finite());
    finite.then_some(AccuracyReport { texts, metric, rank_correlation })
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The rank of every other row by similarity to row `of`.
fn ranks(rows: &[&[f32]], of: usize) -> Vec<f64> {
    let near: Vec<f64> =
        rows.iter().enumerate().filter(|(row, _)| *row != of).map(|(_, row)| cosine(rows[of], row)).collect();
    positions(&near)
}

/// The rank of each value, largest first.
fn positions(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    let mut positions = vec![0.0; values.len()];
    for (place, &row) in order.iter().enumerate() {
        positions[row] = place as f64;
    }
    positions
}

/// Spearman's rank correlation, without ties.
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
    fn equal_vectors_have_a_perfect_report_and_longer_ones_too() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let longer = rows(&some.values.iter().map(|x| 3.0 * x).collect::<Vec<_>>());
        for other in [&some, &longer] {
            let accuracy = of_vectors(other, &some).expect("four rows rank");
            let AccuracyMetric::Vectors { min_cosine, mean_cosine } = accuracy.metric else {
                panic!("{accuracy:?}")
            };
            assert!((min_cosine - 1.0).abs() < 1e-9 && (mean_cosine - 1.0).abs() < 1e-9, "{accuracy:?}");
            assert!((accuracy.rank_correlation - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn one_text_that_strays_shows_in_the_least_and_in_the_ranks() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let other = rows(&[1.0, 0.0, -0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let accuracy = of_vectors(&other, &some).expect("four rows rank");
        let AccuracyMetric::Vectors { min_cosine, mean_cosine } = accuracy.metric else {
            panic!("{accuracy:?}")
        };
        assert!(
            min_cosine < 0.0 && mean_cosine > min_cosine && accuracy.rank_correlation < 0.9,
            "{accuracy:?}"
        );
    }

    #[test]
    fn scores_have_the_farthest_and_the_ranks_of_every_label() {
        let some = rows(&[1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let shifted = rows(&some.values.iter().map(|x| x + 0.25).collect::<Vec<_>>());
        let accuracy = of_scores(&shifted, &some).expect("four rows rank");
        let AccuracyMetric::Scores { max_error } = accuracy.metric else { panic!("{accuracy:?}") };
        assert!(
            (max_error - 0.25).abs() < 1e-6 && (accuracy.rank_correlation - 1.0).abs() < 1e-9,
            "{accuracy:?}"
        );
        // The first two texts change places under one of the two labels.
        let swapped = rows(&[0.8, 0.0, 1.0, 0.6, 0.0, 1.0, -1.0, 0.1]);
        let accuracy = of_scores(&swapped, &some).expect("four rows rank");
        assert!((accuracy.rank_correlation - 0.9).abs() < 1e-9, "{accuracy:?}");
        let kept = serde_json::to_string(&accuracy).expect("it can be written");
        assert_eq!(serde_json::from_str::<AccuracyReport>(&kept).expect("it can be read"), accuracy);
    }

    #[test]
    fn what_is_not_finite_has_no_report() {
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
