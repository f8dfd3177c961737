//! Shadow checks: the reference computes a sample of a batch again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sconce::{Device, ErrorCause, Model, Retry, ShadowCheck, Verdict};
use sconce_testkit::fake::{BatchFault, Fault};
use sconce_testkit::goldens;

use crate::fakes::{METAL, Stage, TEXTS, batch, candle, healthy, kept, open};

/// Computes a batch and checks it.
fn check(model: &Model, texts: &[&str]) -> Option<ShadowCheck> {
    let batch = batch(model, texts);
    let computed = model.compute(batch.clone()).expect("something serves");
    model.shadow(&batch, &computed).expect("the reference computes")
}

#[test]
fn a_check_compares_a_sample_that_rotates() {
    let model = open(&[], &[]);
    for rows in [2, 1, 3, 2] {
        let check = check(&model, &TEXTS[..3]).expect("METAL serves");
        assert_eq!((check.placement.device, check.reference.device), (METAL, Device::Cpu));
        assert_eq!(check.verdict, Verdict::Agrees);
        assert_eq!(check.cosines.len(), rows);
        assert!(check.cosines.iter().all(|cosine| (cosine - 1.0).abs() < 1e-6), "{check:?}");
    }
    assert!(model.quarantined().is_empty());
}

#[test]
fn the_reference_is_loaded_by_the_first_check() {
    let engine = candle();
    let gates = Arc::clone(&engine.gates);
    let model = kept(engine, None);
    let reference = model.reference_to_load().expect("no check was made");
    assert_eq!(reference.placement.device, Device::Cpu);
    assert!(reference.bytes > 0);
    for _ in 0..3 {
        check(&model, &TEXTS).expect("METAL serves");
        assert_eq!((model.reference_to_load(), gates.loaded.load(Ordering::SeqCst)), (None, 2));
    }
}

#[test]
fn a_reference_that_serves_is_not_checked() {
    let model = kept(candle().with(METAL, Fault::NotBuilt), None);
    assert_eq!(check(&model, &TEXTS), None);
    assert_eq!(model.reference_to_load(), None);
}

#[test]
fn a_placement_that_drifts_twice_in_a_row_is_quarantined() {
    let model = open(&[Fault::FromBatch(2, BatchFault::Drift)], &[]);
    assert_eq!(check(&model, &TEXTS).expect("METAL serves").verdict, Verdict::Agrees);
    let drifts = check(&model, &TEXTS).expect("METAL serves");
    assert_eq!(drifts.verdict, Verdict::Drifts);
    assert!(drifts.cosines.iter().all(|cosine| (-1.0..0.999).contains(cosine)), "{drifts:?}");
    assert!(model.quarantined().is_empty());

    let demoted = check(&model, &TEXTS).expect("METAL serves");
    let Verdict::Demoted(why) = demoted.verdict else { panic!("{demoted:?}") };
    for part in [
        "2 batches in a row",
        "from candle/cpu/f32 model.safetensors on the mean",
        "band `exact` allows 1e-5",
    ] {
        assert!(why.contains(part), "`{part}` is missing in: {why}");
    }
    assert_eq!(model.quarantined(), [demoted.placement]);
    let got = model.embed(&TEXTS).expect("the CPU serves");
    assert_eq!(got.placements, [demoted.reference]);
    assert_eq!(got.into_vectors(), healthy(&TEXTS));
    assert_eq!(check(&model, &TEXTS), None, "the reference serves");
}

#[test]
fn a_placement_that_no_longer_serves_is_not_checked() {
    let model = open(&[Fault::FromBatch(2, BatchFault::Nan)], &[]);
    let texts = batch(&model, &TEXTS);
    let first = model.compute(texts.clone()).expect("METAL serves");
    model.compute(texts.clone()).expect("the CPU serves");
    assert_eq!(model.shadow(&texts, &first).expect("nothing is computed"), None);
}

#[test]
fn scores_are_judged_together_once_there_are_enough() {
    let stage = Stage::new(candle());
    let folder = goldens::folder("tiny-bert-rerank");
    let builder = Model::builder(&folder.to_string_lossy()).runtime(&stage.in_process().build());
    let model = builder.open().expect("something serves");
    // Samples of three, two, one and four scores: eight are needed.
    let checks = [(); 4].map(|()| check(&model, &TEXTS));
    assert_eq!(checks.each_ref().map(Option::is_some), [false, false, false, true]);
    let [.., Some(last)] = checks else { panic!("there is a check") };
    assert_eq!((last.cosines.len(), last.verdict), (1, Verdict::Agrees));
}

#[test]
fn a_reference_that_fails_is_a_machine_error_with_its_cause_and_is_loaded_again() {
    let model = open(&[], &[Fault::FromBatch(1, BatchFault::Error)]);
    let batch = batch(&model, &TEXTS);
    let computed = model.compute(batch.clone()).expect("METAL answers");
    let error = model.shadow(&batch, &computed).expect_err("the reference fails");
    assert_eq!((error.cause(), error.retry()), (ErrorCause::Machine, Retry::Later));
    let text = error.to_string();
    assert!(text.contains("candle/cpu/f32") && text.contains("the fake fails as configured"), "{text}");
    assert!(model.reference_to_load().is_some());
}
