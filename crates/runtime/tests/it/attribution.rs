//! Attribution of failures: an unusual text affects neither other texts nor its placement.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use sconce::core::batch::{Batch, OutputKind};
use sconce::{Band, Device, Dtype, EngineId, Error, ErrorCause, Incident, Model, Retry, SequenceError};
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault, ODD_TEXT};

use crate::fakes::{Kept, METAL, Stage, TEXTS, batch, builder, candle, healthy, kept, obstacle, open};

/// Texts with an odd one among them.
const MIXED: [&str; 5] = [TEXTS[0], TEXTS[1], ODD_TEXT, TEXTS[2], TEXTS[3]];
const ODD_INDEX: usize = 2;

fn until(what: &str, reached: impl Fn() -> bool) {
    for _ in 0..6000 {
        if reached() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

fn device(model: &Model) -> Option<Device> {
    model.placement().map(|placement| placement.device)
}

/// Computes a batch with an odd text: the others are right and METAL still serves. What became of the odd one.
fn others_are_answered(model: &Model, case: &str) -> Result<Vec<f32>, SequenceError> {
    let answered = model.compute_each(batch(model, &MIXED)).expect("it is computed");
    let rows = &answered.output.rows;
    for (index, want) in healthy(&MIXED).into_iter().enumerate().filter(|(index, _)| *index != ODD_INDEX) {
        let row = rows.iter().nth(index).expect("a row a text");
        assert_eq!(row, want, "{case}: text {index}");
        assert!(rows.norms[index].is_finite());
    }
    let withheld = rows.iter().nth(ODD_INDEX).expect("a row a text");
    assert!(withheld.iter().all(|x| x.is_nan()) && rows.norms[ODD_INDEX].is_nan(), "{case}");
    let suspects: Vec<usize> = answered.unresolved.iter().map(|suspect| suspect.index).collect();
    let refused: Vec<usize> = answered.rejected.iter().map(|(index, _)| *index).collect();
    assert_eq!([refused, suspects].concat(), [ODD_INDEX], "{case}");
    let outcome = match answered.unresolved.first() {
        Some(suspect) => match model.resolve(suspect) {
            Ok(computed) => Ok(computed.rows.values),
            Err(Error::Sequence(error)) => Err(error),
            Err(error) => panic!("{case}: {error}"),
        },
        None => Err(answered.rejected[0].1.clone()),
    };
    assert_eq!(device(model), Some(METAL), "{case}: {}", model.plan().explain());
    assert!(model.quarantined().is_empty() && obstacle(&model.plan(), METAL).is_none(), "{case}");
    outcome
}

#[test]
fn a_text_on_whose_unusual_norm_two_placements_agree_is_answered() {
    let model = open(&[Fault::OddNorm], &[Fault::OddNorm]);
    for _ in 0..3 {
        let got = model.embed(&MIXED).expect("both agree");
        assert_eq!(got.placements.iter().map(|placement| placement.device).collect::<Vec<_>>(), [METAL]);
        assert_eq!(got.into_vectors(), healthy(&MIXED));
    }
    let odd = others_are_answered(&model, "agreement").expect("both agree");
    assert_eq!(odd, healthy(&[ODD_TEXT])[0]);
}

#[test]
fn the_second_placement_is_loaded_once() {
    let engine = candle().with(METAL, Fault::OddNorm).with(Device::Cpu, Fault::OddNorm);
    let gates = Arc::clone(&engine.gates);
    let model = kept(engine, None);
    assert_eq!(gates.loaded.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        model.embed(&[ODD_TEXT]).expect("both agree");
        assert_eq!(gates.loaded.load(Ordering::SeqCst), 2);
    }
    drop(model);
    // An accelerator's thread unloads in its own time.
    until("the weights are gone", || gates.loaded.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_second_placement_can_be_loaded_before_it_is_asked() {
    let engine = candle().with(METAL, Fault::OddNorm).with(Device::Cpu, Fault::OddNorm);
    let gates = Arc::clone(&engine.gates);
    let model = kept(engine, None);
    let answered = model.compute_each(batch(&model, &MIXED)).expect("it is computed");
    let [suspect] = &answered.unresolved[..] else { panic!("one text is odd") };
    let second = model.second_to_load(suspect).expect("it is not loaded");
    assert_eq!(second.claim().map(|claim| claim.placement.device), Some(Device::Cpu));
    assert_eq!(gates.loaded.load(Ordering::SeqCst), 1);
    model.admit_second(second.load());
    assert!(model.second_to_load(suspect).is_none());
    assert_eq!(model.resolve(suspect).expect("both agree").rows.values, healthy(&[ODD_TEXT])[0]);
    assert_eq!(gates.loaded.load(Ordering::SeqCst), 2);
}

#[test]
fn a_batch_is_split_until_the_text_that_fails_is_alone() {
    let model = open(&[Fault::OddFails], &[Fault::OddFails]);
    for (texts, splits) in
        [(&TEXTS[..], 0), (&[ODD_TEXT][..], 0), (&[TEXTS[0], ODD_TEXT][..], 1), (&MIXED[..], 2)]
    {
        let answered = model.compute_each(batch(&model, texts)).expect("it is computed");
        assert_eq!(answered.output.splits, splits, "{texts:?}");
    }
}

#[test]
fn a_second_placement_that_becomes_the_active_one_is_not_loaded_again() {
    let engine = candle()
        .with(METAL, Fault::OddNorm)
        .with(METAL, Fault::FromBatch(8, BatchFault::Nan))
        .with(Device::Cpu, Fault::OddNorm);
    let gates = Arc::clone(&engine.gates);
    let model = kept(engine, None);
    model.embed(&[ODD_TEXT]).expect("both agree");
    assert_eq!(gates.loaded.load(Ordering::SeqCst), 2);
    let loads = gates.loads.load(Ordering::SeqCst);
    let moved = || model.embed(&TEXTS).expect("something serves").placements[0].device == Device::Cpu;
    until("the CPU serves", moved);
    until("one of them is left", || gates.loaded.load(Ordering::SeqCst) == 1);
    assert_eq!(gates.loads.load(Ordering::SeqCst), loads);
}

#[test]
fn a_placement_whose_numbers_another_contradicts_is_retired() {
    for (fault, why) in [
        (Fault::OddNorm, "a vector of norm 1000000"),
        (Fault::OddNan, "a value that is not finite"),
        (Fault::OddFails, "the engine failed: the fake fails on odd texts"),
    ] {
        let model = open(&[fault], &[]);
        assert_eq!(model.embed(&TEXTS).expect("nothing is odd").placements[0].device, METAL);
        let got = model.embed(&MIXED).expect("the CPU answers");
        assert_eq!(got.placements[0].device, Device::Cpu, "{fault:?}");
        assert_eq!(got.into_vectors(), healthy(&MIXED), "{fault:?}");
        let plan = model.plan();
        let found = obstacle(&plan, METAL).expect("it was wrong").to_string();
        assert!(found.contains(why), "{fault:?}: {found}");

        let model = open(&[fault], &[]);
        let answered = model.compute_each(batch(&model, &MIXED)).expect("it is computed");
        let settled = model.resolve(&answered.unresolved[0]).expect("the CPU answers");
        assert_eq!(settled.rows.values, healthy(&[ODD_TEXT])[0], "{fault:?}");
        assert_eq!(settled.placement.device, Device::Cpu);
        let blamed = |incidents: &[Incident]| -> Vec<Device> {
            incidents.iter().map(|incident| incident.placement.device).collect()
        };
        assert_eq!(blamed(&settled.incidents), [METAL], "{fault:?}");

        let model = open(&[fault], &[]);
        let computed = model.compute(batch(&model, &MIXED)).expect("the CPU answers");
        assert_eq!(blamed(&computed.incidents), [METAL], "{fault:?}");
    }
}

#[test]
fn a_text_that_two_placements_fail_on_is_refused_alone() {
    for (on_metal, on_cpu) in [
        (&[Fault::OddNan][..], &[Fault::OddNan][..]),
        (&[Fault::OddFails], &[Fault::OddFails]),
        (&[Fault::OddNan], &[Fault::OddFails]),
        (&[Fault::OddNan], &[Fault::OddNorm]),
        (&[Fault::OddNorm], &[Fault::OddNan]),
        // Both norms are unusual, and the numbers differ.
        (&[Fault::OddNorm], &[Fault::OddNorm, Fault::OddDrift]),
    ] {
        let case = format!("{on_metal:?} {on_cpu:?}");
        let model = open(on_metal, on_cpu);
        let error = others_are_answered(&model, &case).expect_err("nobody knows its numbers");
        assert!(matches!(error, SequenceError::Unusual { .. }), "{case}: {error}");
        let text = error.to_string();
        assert!(text.contains("candle/metal:0/f32") && text.contains("candle/cpu/f32"), "{text}");
        let error = model.embed(&MIXED).expect_err("one text of it has no answer");
        assert_eq!((error.cause(), error.retry()), (ErrorCause::Request, Retry::Never), "{case}: {error}");
        assert_eq!(device(&model), Some(METAL), "{case}");
    }
}

#[test]
fn a_text_that_does_not_fit_alone_is_refused_and_its_placement_stays() {
    let model = open(&[Fault::OutOfMemory { above: 4800 }], &[]);
    let mut batch = batch(&model, &TEXTS[..2]);
    batch.push(&vec![7; 6000], &vec![0; 6000], 0);
    let answered = model.compute_each(batch).expect("the others are computed");
    assert!(answered.unresolved.is_empty());
    let refused: Vec<(usize, &SequenceError)> =
        answered.rejected.iter().map(|(index, error)| (*index, error)).collect();
    let [(2, SequenceError::DoesNotFit { tokens: 6000, placement })] = refused[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(placement.device, METAL);
    let vectors: Vec<&[f32]> = answered.output.rows.iter().take(2).collect();
    assert_eq!(vectors, healthy(&TEXTS[..2]));
    assert_eq!(device(&model), Some(METAL), "{}", model.plan().explain());
}

#[test]
fn a_text_that_the_engine_rejects_is_refused_alone_and_nobody_else_is_asked() {
    let model = open(&[Fault::OddMalformed], &[Fault::FromBatch(1, BatchFault::Panic)]);
    let error = others_are_answered(&model, "malformed").expect_err("it is rejected");
    assert_eq!(error, SequenceError::Malformed("the fake takes no odd texts".to_owned()));
    // A second placement may reject it, too.
    let model = open(&[Fault::OddNorm], &[Fault::OddMalformed]);
    let error = others_are_answered(&model, "malformed on the second").expect_err("it is rejected");
    assert!(matches!(error, SequenceError::Malformed(_)), "{error}");
}

#[test]
fn a_placement_without_memory_for_a_known_text_is_retired() {
    let model = open(&[Fault::FromBatch(2, BatchFault::Memory)], &[]);
    for device in [METAL, Device::Cpu] {
        let got = model.embed(&TEXTS).expect("something serves");
        assert_eq!(got.placements[0].device, device);
        assert_eq!(got.into_vectors(), healthy(&TEXTS));
    }
    let plan = model.plan();
    let found = obstacle(&plan, METAL).expect("it has no memory").to_string();
    assert!(found.contains("out of memory: the fake has no memory at all"), "{found}");
}

#[test]
fn a_placement_that_can_not_be_loaded_beside_the_first_stays_in_the_plan() {
    let engine = candle().with(METAL, Fault::OddNorm).with(Device::Cpu, Fault::OddNorm);
    let mut stage = Stage::new(engine);
    // As fast as the first one, and so the next in the plan.
    stage.engines.push(FakeEngine::new(EngineId::Onnx).with(METAL, Fault::DoesNotFit));
    let model = builder(&stage.in_process().build()).engine(EngineId::Candle).open().expect("it serves");
    assert_eq!(model.embed(&MIXED).expect("the CPU agrees").into_vectors(), healthy(&MIXED));
    drop(model);
    let model = builder(&stage.in_process().build()).open().expect("it serves");
    let viable = |model: &Model| -> Vec<EngineId> {
        model.plan().viable().map(|viable| viable.placement.engine).collect()
    };
    let before = viable(&model);
    assert!(before.contains(&EngineId::Onnx), "{}", model.plan().explain());
    if model.placement().is_some_and(|placement| placement.engine == EngineId::Candle) {
        assert_eq!(model.embed(&MIXED).expect("the CPU agrees").into_vectors(), healthy(&MIXED));
        assert_eq!(viable(&model), before);
    }
}

#[test]
fn a_placement_in_service_needs_no_readmission() {
    let model = open(&[], &[]);
    let placement = model.placement().expect("it serves");
    assert!(model.readmission(&placement).is_none());
    model.readmit(&placement).expect("there is nothing to do");
    assert_eq!(model.placement(), Some(placement));
}

#[test]
fn a_readmitted_placement_serves_again_in_its_rank() {
    let model = open(&[Fault::FromBatch(2, BatchFault::Nan)], &[]);
    for expected in [METAL, Device::Cpu] {
        assert_eq!(model.embed(&TEXTS).expect("something serves").placements[0].device, expected);
    }
    let quarantined = model.quarantined();
    let readmission = |model: &Model| model.readmission(&quarantined[0]).expect("it is out of service");
    let twice = [readmission(&model), readmission(&model)].map(|readmission| readmission.prove().ok());
    for readmitted in twice {
        model.admit(readmitted.expect("it is right again"));
        assert!(model.quarantined().is_empty());
        assert_eq!(device(&model), Some(METAL));
        let viable: Vec<Device> = model.plan().viable().map(|viable| viable.placement.device).collect();
        assert_eq!(viable, [METAL, Device::Cpu], "each is in the plan once");
    }
    let got = model.embed(&TEXTS).expect("METAL serves");
    assert_eq!((got.placements[0].device, got.into_vectors()), (METAL, healthy(&TEXTS)));
}

#[test]
fn the_only_placement_is_never_retired_for_a_norm() {
    let engine = candle().with(Device::Cpu, Fault::OddNorm);
    let model = kept(engine.with(METAL, Fault::NotBuilt), None);
    for _ in 0..3 {
        let error = model.embed(&MIXED).expect_err("nobody else can be asked");
        assert!(matches!(error, Error::Sequence(SequenceError::Unusual { .. })), "{error}");
        assert!(error.to_string().contains("no other placement"), "{error}");
    }
    assert_eq!(model.embed(&TEXTS).expect("it serves still").into_vectors(), healthy(&TEXTS));
    assert!(model.out_of_service().is_none());
}

#[test]
fn a_model_without_a_placement_says_what_became_of_the_last_one() {
    let fault = Fault::FromBatch(2, BatchFault::Nan);
    let model = open(&[fault], &[fault]);
    model.embed(&TEXTS).expect("METAL serves");
    model.embed(&TEXTS).expect("the CPU serves");
    assert_eq!(model.out_of_service(), None);
    model.embed(&TEXTS).expect_err("nothing serves");
    let why = model.out_of_service().expect("nothing is left");
    assert!(why.contains("candle/cpu/f32") && why.contains("not finite"), "{why}");
}

#[test]
fn where_only_one_placement_was_asked_for_the_reference_gives_the_second_opinion() {
    let engine = candle().with(METAL, Fault::OddNorm).with(Device::Cpu, Fault::OddNorm);
    let model = kept(engine, Some(METAL));
    assert_eq!(model.plan().viable().count(), 1);
    assert_eq!(model.embed(&MIXED).expect("the reference agrees").into_vectors(), healthy(&MIXED));
    assert_eq!(device(&model), Some(METAL));
}

#[test]
fn a_second_placement_that_fails_on_known_texts_decides_nothing() {
    for mishap in [BatchFault::Nan, BatchFault::Error, BatchFault::Rows, BatchFault::Panic] {
        let model = open(&[Fault::OddNorm], &[Fault::FromBatch(1, mishap)]);
        let error = model.embed(&MIXED).expect_err("nobody is left to ask");
        assert!(error.to_string().contains("no other placement"), "{mishap:?}: {error}");
        assert_eq!(device(&model), Some(METAL), "{mishap:?}");
        let out: Vec<Device> = model.quarantined().iter().map(|placement| placement.device).collect();
        assert_eq!(out, [Device::Cpu], "{mishap:?}");
        let told: Vec<Device> = model.drain_incidents().iter().map(|one| one.placement.device).collect();
        assert_eq!(told, [Device::Cpu], "{mishap:?} is told once");
        assert!(model.drain_incidents().is_empty());
    }
}

#[test]
fn hidden_states_are_guarded_as_answers_are() {
    for mishap in [BatchFault::Nan, BatchFault::Zero] {
        let model = open(&[Fault::FromBatch(1, mishap)], &[]);
        let states = Batch { output_kind: OutputKind::Tokens, ..batch(&model, &TEXTS) };
        let computed = model.compute(states.clone()).expect("the CPU answers");
        assert_eq!(computed.placement.device, Device::Cpu, "{mishap:?}");
        assert_eq!(computed.rows.iter().len(), states.tokens());
        assert!(computed.rows.values.iter().all(|x| x.is_finite()), "{mishap:?}");
    }
    // One odd sequence of hidden states is refused alone as well.
    let model = open(&[Fault::OddNan], &[Fault::OddNan]);
    let states = Batch { output_kind: OutputKind::Tokens, ..batch(&model, &MIXED) };
    let answered = model.compute_each(states.clone()).expect("it is computed");
    let rows = answered.output.rows;
    let place = states.rows_of(ODD_INDEX..ODD_INDEX + 1);
    for (row, values) in rows.iter().enumerate() {
        assert_eq!(values.iter().all(|x| x.is_nan()), place.contains(&row), "row {row}");
    }
    assert!(model.resolve(&answered.unresolved[0]).is_err());
    assert_eq!(device(&model), Some(METAL));
}

#[test]
fn a_looser_placement_is_not_asked_for_a_second_opinion() {
    // Only a half placement would contradict the exact one.
    let engine = candle()
        .dtypes(&[Dtype::F32, Dtype::F16])
        .with_in(METAL, Dtype::F32, Fault::OddNorm)
        .with_in(METAL, Dtype::F16, Fault::SlowerThanCpu(0.2))
        .with_in(Device::Cpu, Dtype::F32, Fault::OddNorm)
        .with_in(Device::Cpu, Dtype::F16, Fault::SlowerThanCpu(0.9));
    let model = kept(engine, None);
    let chosen = model.plan().chosen.expect("it serves");
    assert_eq!((chosen.placement.dtype, chosen.band), (Dtype::F32, Band::Exact));
    assert_eq!(model.embed(&MIXED).expect("both exact ones agree").into_vectors(), healthy(&MIXED));
    assert_eq!(model.placement(), Some(chosen.placement));
}

#[test]
fn a_placement_that_is_proved_anew_keeps_no_dropped_model_loaded() {
    let engine = candle().with(METAL, Fault::FromBatch(2, BatchFault::Nan));
    let gates = Arc::clone(&engine.gates);
    let Kept { model, _stage } = kept(engine, None);
    for device in [METAL, Device::Cpu] {
        assert_eq!(model.embed(&TEXTS).expect("it serves").placements[0].device, device);
    }
    let [metal] = &model.quarantined()[..] else { panic!("METAL is out of service") };
    let readmission = model.readmission(metal).expect("it may return");
    gates.hold_canaries.store(true, Ordering::SeqCst);
    let proving = thread::spawn(move || readmission.prove().is_ok());
    until("its canary is asked", || gates.waiting.load(Ordering::SeqCst) == 1);
    drop(model);
    until("the weights are gone", || gates.loaded.load(Ordering::SeqCst) == 0);
    gates.hold_canaries.store(false, Ordering::SeqCst);
    assert!(proving.join().expect("no panic"), "it is right again");
}
