//! Findings.

use std::collections::BTreeMap;

use sconce_core::obstacle::{Distance, Obstacle};
use sconce_planner::accuracy::{AccuracyMetric, AccuracyReport};
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
