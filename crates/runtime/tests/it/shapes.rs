//! Placements that are wrong at one length only: the share that the twin sweep detects.

use std::collections::BTreeSet;

use sconce::planner::band::Band;
use sconce::planner::{cases, judge};
use sconce::{Dtype, EngineId, Placement};
use sconce_core::batch::Rows;
use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::probe::ProbeCase;
use sconce_testkit::fake::{FakeEngine, Fault};

use crate::fakes::{METAL, candle};
use crate::support::spec;

/// `count` lengths within `range`, from a fixed seed.
fn lengths(count: usize, range: std::ops::RangeInclusive<u64>) -> Vec<usize> {
    let mut state = 0x5c04_ce5c_04ce_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (range.start() + (state >> 33) % (range.end() - range.start() + 1)) as usize
    };
    (0..count).map(|_| next()).collect()
}

fn answer(engine: &FakeEngine, spec: &ModelSpec, case: &ProbeCase) -> Rows {
    let weights = spec.card.weights[0].name.clone();
    let placement = Placement { engine: EngineId::Candle, device: METAL, weights, dtype: Dtype::F32 };
    engine.probe(spec, &placement, case).expect("the fake answers").rows
}

/// The lengths, of `tried`, at which a wrong result went unseen.
fn escapes(spec: &ModelSpec, tried: &[usize], longest: bool) -> BTreeSet<usize> {
    let cases = cases::twins(&spec.card);
    let wants: Vec<Rows> = cases.iter().map(|case| answer(&candle(), spec, case)).collect();
    let is_caught = |length: usize| {
        let engine = candle().with(METAL, Fault::WrongAt { length, longest });
        let wrong =
            |(case, want)| judge::judge(case, &answer(&engine, spec, case), want, Band::Exact).is_err();
        cases.iter().zip(&wants).any(wrong)
    };
    let escaped: Vec<usize> = tried.iter().copied().filter(|&length| !is_caught(length)).collect();
    let share = 100.0 * (1.0 - escaped.len() as f64 / tried.len() as f64);
    let escaped: BTreeSet<usize> = escaped.into_iter().collect();
    println!("longest={longest}: {share:.1}% of {} caught, escaped: {escaped:?}", tried.len());
    escaped
}

#[test]
fn every_length_up_to_512_that_alone_is_wrong_is_caught() {
    let roberta = spec("tiny-roberta");
    assert_eq!(roberta.card.max_length.value, 512);
    for longest in [true, false] {
        let escaped = escapes(&roberta, &lengths(200, 1..=512), longest);
        assert!(escaped.is_empty(), "escaped: {escaped:?}");
    }
}

#[test]
fn beyond_512_the_multiples_of_64_and_their_neighbours_are_caught() {
    let mut roberta = spec("tiny-roberta");
    roberta.card.max_length.value = 2100;
    for longest in [true, false] {
        let tried: Vec<usize> = lengths(50, 513..=2100).into_iter().chain((576..=2048).step_by(64)).collect();
        let escaped = escapes(&roberta, &tried, longest);
        let promised = |length: &usize| matches!(length % 64, 0 | 1 | 63);
        assert!(!escaped.iter().any(promised), "escaped: {escaped:?}");
    }
}
