//! Findings.

use std::collections::BTreeMap;

use sconce_core::device::Device;
use sconce_core::obstacle::{Distance, Obstacle};
use sconce_core::placement::Dtype;
use sconce_planner::accuracy::{AccuracyMetric, AccuracyReport};
use sconce_planner::band::Band;
use sconce_planner::evidence::{Agreement, Canary, Findings, Goal, SpeedPoint};

const ACCURACY: AccuracyReport =
    AccuracyReport { texts: 8, metric: AccuracyMetric::Scores { max_error: 0.5 }, rank_correlation: 0.9 };

fn obstacle(case: &str) -> Obstacle {
    Obstacle::TimedOut { case: case.to_owned(), seconds: 1.0 }
}

fn canary(error: f64) -> Canary {
    Canary {
        error: Distance(Some(error)),
        accuracy: Some(ACCURACY),
        tokens_per_second: 1.0,
        memory: None,
        norms: [1.0; 2],
        nodes: BTreeMap::new(),
    }
}

#[test]
fn the_first_obstacle_is_that_of_the_twin_then_of_speed_then_of_the_canary() {
    let (twin, speed, canary) =
        (Some(Err(obstacle("twin"))), Some(Err(obstacle("speed"))), Some(Err(obstacle("canary"))));
    let all = Findings { twin, speed, canary };
    assert_eq!(all.obstacle(), Some(&obstacle("twin")));
    let without = Findings { twin: None, ..all.clone() };
    assert_eq!(without.obstacle(), Some(&obstacle("speed")));
    assert_eq!(Findings { speed: None, ..without }.obstacle(), Some(&obstacle("canary")));
    assert_eq!(Findings::default().obstacle(), None);
}

#[test]
fn the_error_of_real_weights_counts_before_that_of_the_twin() {
    let twin = Some(Ok(Agreement { error: Distance(Some(1e-7)), cases: 3 }));
    let findings = Findings { twin, ..Findings::default() };
    assert_eq!((findings.error(), findings.accuracy()), (Some(Distance(Some(1e-7))), None));
    let tried = Findings { canary: Some(Ok(canary(1e-3))), ..findings.clone() };
    assert_eq!((tried.error(), tried.accuracy()), (Some(Distance(Some(1e-3))), Some(&ACCURACY)));
    let failed = Findings { canary: Some(Err(obstacle("canary"))), ..findings };
    assert_eq!((failed.error(), failed.accuracy()), (Some(Distance(Some(1e-7))), None));
    assert_eq!(Findings::default().error(), None);
}

#[test]
fn an_estimate_is_of_the_shape_that_matters_for_the_goal() {
    let point = |batch, length, seconds, layers| SpeedPoint { batch, length, cached: None, seconds, layers };
    let points = vec![point(1, 16, 0.5, 1), point(8, 128, 4.0, 2), point(32, 256, 99.0, 1)];
    let findings = Findings { speed: Some(Ok(points)), ..Findings::default() };
    let latency = findings.estimate(Goal::Latency, 12).expect("it was timed");
    assert_eq!((latency.texts, latency.tokens), (1, 16));
    assert!((latency.seconds - 6.0).abs() < 1e-9);
    let bulk = findings.estimate(Goal::Throughput, 12).expect("it was timed");
    assert_eq!((bulk.texts, bulk.tokens), (8, 1024));
    assert!((bulk.seconds - 24.0).abs() < 1e-9);
    assert!((bulk.texts_per_second() - 8.0 / 24.0).abs() < 1e-9);
    assert!((bulk.tokens_per_second() - 1024.0 / 24.0).abs() < 1e-9);
    // Zero layers count as one.
    let of = |layers| findings.estimate(Goal::Latency, layers).expect("it was timed").seconds;
    assert!((of(0) - of(1)).abs() < 1e-9);
    let none = Findings { speed: Some(Ok(vec![point(1, 1, 3.0, 0); 2])), ..Findings::default() };
    assert!((none.estimate(Goal::Latency, 2).expect("it was timed").seconds - 6.0).abs() < 1e-9);
}

#[test]
fn what_was_not_timed_has_no_estimate() {
    let point = SpeedPoint { batch: 1, length: 16, cached: None, seconds: 1.0, layers: 1 };
    for (speed, latency) in
        [(None, false), (Some(Err(obstacle("speed"))), false), (Some(Ok(vec![point])), true)]
    {
        let findings = Findings { speed, ..Findings::default() };
        assert_eq!(findings.estimate(Goal::Latency, 1).is_some(), latency);
        assert_eq!(findings.estimate(Goal::Throughput, 1), None);
    }
    assert_eq!(Goal::default(), Goal::Throughput);
}

#[test]
fn text_generation_is_estimated_by_its_decode_steps() {
    let point = |batch, length, cached, seconds| SpeedPoint { batch, length, cached, seconds, layers: 1 };
    let points = vec![
        point(1, 16, None, 5.0),
        point(8, 128, None, 6.0),
        point(32, 256, None, 7.0),
        point(1, 1, Some(128), 0.01),
        point(8, 1, Some(128), 0.02),
    ];
    let findings = Findings { speed: Some(Ok(points)), ..Findings::default() };
    assert!(findings.generates() && !Findings::default().generates());
    let alone = findings.estimate(Goal::Latency, 10).expect("it was timed");
    assert!((alone.tokens_per_second() - 10.0).abs() < 1e-9);
    let together = findings.estimate(Goal::Throughput, 10).expect("it was timed");
    assert!((together.tokens_per_second() - 40.0).abs() < 1e-9);
}

/// A canary of a language model whose reference has a perplexity of 50.
fn predicting(error: f64, perplexity: f64, top1_agreement: f64) -> Canary {
    let metric =
        AccuracyMetric::Predictions { tokens: 300, perplexity, reference_perplexity: 50.0, top1_agreement };
    let accuracy = AccuracyReport { texts: 4, metric, rank_correlation: 1.0 };
    Canary { accuracy: Some(accuracy), ..canary(error) }
}

#[test]
fn a_language_model_with_quantized_weights_is_judged_by_what_it_predicts() {
    for (error, perplexity, agreement, band) in [
        (1e-6, 50.0, 1.0, Band::Exact),
        (5e-4, 50.0, 1.0, Band::Half),
        (3e-3, 50.9, 0.91, Band::Half),
        (3e-3, 49.1, 0.91, Band::Half),
        (3e-3, 51.1, 0.99, Band::Coarse),
        (3e-3, 48.9, 0.99, Band::Coarse),
        (3e-3, 50.0, 0.89, Band::Coarse),
        (5e-4, 51.1, 0.99, Band::Coarse),
        (5e-4, f64::NAN, 0.99, Band::Coarse),
    ] {
        let found = predicting(error, perplexity, agreement);
        for dtype in [Dtype::Int8, Dtype::Int4] {
            assert_eq!(found.band(dtype, None), Some(band), "{error} {perplexity} {agreement} in {dtype}");
        }
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            assert_eq!(found.band(dtype, None), Band::measured(found.error, None), "{error} in {dtype}");
        }
    }
    // Predictions make up for no distance beyond all bands.
    assert_eq!(predicting(0.5, 50.0, 1.0).band(Dtype::Int4, None), None);
    let quantized = crate::placement(Device::Cpu, Dtype::Int8);
    let band = predicting(3e-3, 50.0, 1.0).band(Dtype::Int4, Some(&quantized));
    assert_eq!(band, Some(Band::Unknown), "the reference's own distance is not known");
}

#[test]
fn vectors_and_scores_are_judged_by_their_distance() {
    for metric in [
        AccuracyMetric::Vectors { min_cosine: 1.0, mean_cosine: 1.0 },
        AccuracyMetric::Scores { max_error: 0.0 },
    ] {
        let accuracy = Some(AccuracyReport { texts: 4, metric, rank_correlation: 1.0 });
        let found = Canary { accuracy, ..canary(3e-3) };
        assert_eq!(found.band(Dtype::Int8, None), Some(Band::Coarse));
    }
}
