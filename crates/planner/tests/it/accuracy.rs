//! Accuracy reports against hand-computed values.

use sconce_core::batch::Rows;
use sconce_core::probe::Prediction;
use sconce_planner::accuracy::{
    AccuracyMetric, AccuracyReport, of_predictions, of_scores, of_vectors, sentences,
};

fn rows(width: usize, values: &[f32]) -> Rows {
    Rows { width, values: values.to_vec(), norms: Vec::new() }
}

fn near(found: f64, want: f64) -> bool {
    (found - want).abs() < 1e-6
}

#[test]
fn minimum_and_mean_cosine_are_reported() {
    let reference = rows(2, &[1.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
    let other = rows(2, &[1.0, 0.0, 0.0, 5.0, 3.0, 4.0]);
    let accuracy = of_vectors(&other, &reference).expect("three rows rank");
    let AccuracyMetric::Vectors { min_cosine, mean_cosine } = accuracy.metric else { panic!("{accuracy:?}") };
    assert!(accuracy.texts == 3 && near(min_cosine, 0.6) && near(mean_cosine, 2.6 / 3.0), "{accuracy:?}");
}

#[test]
fn ranks_are_the_mean_of_spearmans_coefficient() {
    let angle = |degrees: f32| [degrees.to_radians().cos(), degrees.to_radians().sin()];
    let reference = rows(2, &[0.0, 10.0, 35.0, 80.0].map(angle).concat());
    let same = of_vectors(&reference, &reference).expect("four rows rank");
    assert!(near(same.rank_correlation, 1.0), "{same:?}");
    let other = rows(2, &[0.0, 80.0, 35.0, 10.0].map(angle).concat());
    let accuracy = of_vectors(&other, &reference).expect("four rows rank");
    let by_text: Vec<f64> = (0..4).map(|text| spearman(&reference, &other, text)).collect();
    let mean = by_text.iter().sum::<f64>() / 4.0;
    assert!(near(accuracy.rank_correlation, mean) && mean < 0.0, "{accuracy:?} {by_text:?}");
}

/// Spearman's coefficient as the correlation of ranks, which without ties is the same as the short formula.
fn spearman(a: &Rows, b: &Rows, text: usize) -> f64 {
    let ranks = |rows: &Rows| {
        let rows: Vec<&[f32]> = rows.iter().collect();
        let dot = |other: &[f32]| rows[text].iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
        let near: Vec<f32> = (0..rows.len()).filter(|&row| row != text).map(|row| dot(rows[row])).collect();
        near.iter().map(|x| near.iter().filter(|y| *y > x).count() as f64).collect::<Vec<_>>()
    };
    let (a, b) = (ranks(a), ranks(b));
    let middle = (a.len() - 1) as f64 / 2.0;
    let sum = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| (x - middle) * (y - middle)).sum::<f64>();
    sum(&a, &b) / (sum(&a, &a) * sum(&b, &b)).sqrt()
}

#[test]
fn scores_are_ranked_by_label_and_their_largest_error_is_reported() {
    let reference = rows(2, &[1.0, 9.0, 2.0, 8.0, 3.0, 7.0]);
    // The first label is ranked in reverse, the second equally.
    let other = rows(2, &[3.0, 9.5, 2.0, 8.0, 1.0, 7.0]);
    let accuracy = of_scores(&other, &reference).expect("three rows rank");
    let AccuracyMetric::Scores { max_error } = accuracy.metric else { panic!("{accuracy:?}") };
    assert!(
        accuracy.texts == 3 && near(max_error, 2.0) && near(accuracy.rank_correlation, 0.0),
        "{accuracy:?}"
    );
}

#[test]
fn fewer_than_three_rows_and_rows_of_another_shape_have_no_report() {
    let three = rows(2, &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    let two = rows(2, &[1.0, 0.0, 0.0, 1.0]);
    let four = rows(2, &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 2.0]);
    let narrow = rows(1, &[1.0, 0.5, 2.0]);
    for of in [of_vectors, of_scores] {
        assert!(of(&three, &three).is_some());
        for (a, b) in [(&two, &two), (&four, &three), (&three, &four), (&narrow, &three), (&three, &narrow)] {
            assert_eq!(of(a, b), None);
        }
    }
    let infinite = rows(2, &[f32::INFINITY, 0.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!((of_vectors(&infinite, &three), of_scores(&infinite, &three)), (None, None));
}

#[test]
fn a_report_reads_as_a_sentence() {
    let vectors = AccuracyReport {
        texts: 40,
        metric: AccuracyMetric::Vectors { min_cosine: 0.5, mean_cosine: 0.75 },
        rank_correlation: 0.9,
    };
    assert_eq!(
        vectors.to_string(),
        "cosine 0.5000 at least and 0.7500 on average over 40 texts, rank correlation 0.9000"
    );
    let scores = AccuracyReport {
        texts: 40,
        metric: AccuracyMetric::Scores { max_error: 0.25 },
        rank_correlation: 1.0,
    };
    assert_eq!(scores.to_string(), "scores 0.2500 away at most over 40 texts, rank correlation 1.0000");
}

#[test]
fn the_sample_is_the_file_line_by_line() {
    let all: Vec<&str> = sentences().collect();
    assert!(all.len() >= 40 && all.iter().any(|text| text.len() > 100));
}

#[test]
fn predictions_are_compared_by_perplexity_and_by_the_top_token() {
    let predictions = |pairs: &[(f32, u32)]| -> Vec<Prediction> {
        pairs.iter().map(|&(probability, top)| Prediction { logprob: probability.ln(), top }).collect()
    };
    let reference = predictions(&[(0.5, 1), (0.25, 2), (0.125, 3), (1.0, 4)]);
    let same = of_predictions(8, &reference, &reference).expect("they are finite");
    assert!((same.rank_correlation - 1.0).abs() < 1e-12);
    let other = predictions(&[(0.25, 1), (0.125, 2), (0.0625, 9), (0.5, 4)]);
    let report = of_predictions(8, &other, &reference).expect("they are finite");
    let AccuracyMetric::Predictions { tokens, perplexity, reference_perplexity, top1_agreement } =
        report.metric
    else {
        panic!("{report:?}")
    };
    assert_eq!((report.texts, tokens), (8, 4));
    assert!((perplexity / reference_perplexity - 2.0).abs() < 1e-6, "{report}");
    assert!((reference_perplexity.powi(4) - 64.0).abs() < 1e-3, "{report}");
    assert!((top1_agreement - 0.75).abs() < 1e-12);
    assert!(report.to_string().contains("75.0 % of 4 tokens"), "{report}");
    assert_eq!(of_predictions(8, &other[..3], &reference), None);
    assert_eq!(of_predictions(8, &other[..2], &reference[..2]), None);
    let nan = [&[Prediction { logprob: f32::NAN, top: 1 }], &reference[1..]].concat();
    assert_eq!(of_predictions(8, &nan, &reference), None);
    assert_eq!(of_predictions(8, &reference, &nan), None);
}
