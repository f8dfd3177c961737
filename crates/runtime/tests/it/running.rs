//! Failures at run time: the caller gets correct vectors, and the plan has the reason.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sconce::{Band, BatchOutput, Device, Dtype, EngineId, Error, IncidentKind, Model, Obstacle, Plan, Retry};
use sconce_core::batch::Batch;
use sconce_core::card::Format;
use sconce_testkit::fake::{BatchFault, FakeEngine, Fault};

use crate::fakes::{METAL, Stage, TEXTS, builder, candle, healthy, obstacle};
use crate::support::Copy;

const SHORT: Duration = Duration::from_millis(400);

/// A machine whose accelerator has `fault`.
fn stage(fault: Fault) -> Stage {
    Stage { timeout: SHORT, ..Stage::new(candle().with(METAL, fault)) }
}

fn open(stage: &Stage) -> Model {
    builder(&stage.in_process().build()).open().expect("something serves")
}

/// Why `device` was taken out of service.
fn quarantine(plan: &Plan, device: Device) -> String {
    let found = obstacle(plan, device).unwrap_or_else(|| panic!("it serves still:\n{}", plan.explain()));
    assert_eq!(found.code(), "quarantined", "{found}");
    assert!(found.remedy().to_string().contains("`sconce doctor --fresh`"));
    let Obstacle::Quarantined { reason: why } = found else { panic!("{found}") };
    why.clone()
}

#[test]
fn a_fault_at_any_batch_costs_the_caller_nothing_but_time() {
    let want = healthy(&TEXTS);
    for (mishap, why) in [
        (BatchFault::Error, "the engine failed: the fake fails as configured"),
        (BatchFault::Nan, "a value that is not finite"),
        (BatchFault::Zero, "a vector of zeros"),
        (BatchFault::Norm, "a vector of norm 1000000"),
        (BatchFault::Rows, "96 values for 4 vectors of dimension 32"),
        (BatchFault::Panic, "it panicked: the fake panics as configured"),
        (BatchFault::Hang, "it gave no answer in 0.4 s"),
    ] {
        for nth in [1, 3] {
            let model = open(&stage(Fault::FromBatch(nth, mishap)));
            for batch in 1..=4 {
                let got = model.embed(&TEXTS).unwrap_or_else(|error| panic!("{mishap:?}: {error}"));
                let device = if batch < nth { METAL } else { Device::Cpu };
                assert_eq!(got.placements.len(), 1);
                assert_eq!(got.placements[0].device, device, "{mishap:?} at batch {batch}");
                assert_eq!(got.into_vectors(), want, "{mishap:?} at batch {batch}");
            }
            let plan = model.plan();
            assert!(quarantine(&plan, METAL).contains(why), "{mishap:?}: {}", plan.explain());
            assert_eq!(plan.chosen.map(|chosen| chosen.placement.device), Some(Device::Cpu));
            assert_eq!(model.placement().map(|placement| placement.device), Some(Device::Cpu));
        }
    }
}

#[test]
fn an_output_is_delivered_before_the_caller_returns_unless_a_placement_fails() {
    let want = healthy(&TEXTS);
    let faults = [BatchFault::Error, BatchFault::Nan, BatchFault::Norm, BatchFault::Panic, BatchFault::Hang];
    for fault in std::iter::once(None).chain(faults.map(Some)) {
        let engine = fault.map_or_else(candle, |fault| candle().with(METAL, Fault::FromBatch(1, fault)));
        let model = open(&Stage { timeout: SHORT, ..Stage::new(engine) });
        let mut batch = Batch::new(model.output_kind());
        for text in model.encode_texts(&sconce::Prompt::Default, &TEXTS).expect("texts are tokens") {
            batch.push(&text.ids, &text.type_ids, text.prompt_tokens);
        }
        let (sender, delivered) = mpsc::channel();
        let on_output = Box::new(move |output: &BatchOutput| {
            sender.send((output.clone(), thread::current().id())).expect("the test waits");
        });
        let outcome = model.compute_each_then(batch, on_output).expect("something serves");
        let rows: Vec<_> = outcome.output.rows.iter().map(<[f32]>::to_vec).collect();
        assert_eq!(rows, want, "{fault:?}");
        assert_eq!(outcome.delivered, fault.is_none(), "{fault:?}");
        let delivered: Vec<_> = delivered.try_iter().collect();
        assert_eq!(delivered.len(), usize::from(fault.is_none()), "{fault:?}");
        for (output, thread) in delivered {
            assert_eq!(output, outcome.output);
            assert_ne!(thread, thread::current().id());
        }
    }
}

#[test]
fn one_request_of_many_batches_names_all_who_worked_on_it() {
    let texts: Vec<String> = (0..600).map(|n| format!("{n} {}", TEXTS[3].repeat(3))).collect();
    let model = open(&stage(Fault::FromBatch(2, BatchFault::Nan)));
    let got = model.embed(&texts).expect("the CPU takes over");
    let devices: Vec<Device> = got.placements.iter().map(|placement| placement.device).collect();
    assert_eq!(devices, [METAL, Device::Cpu]);
    assert_eq!(got.classes.len(), 1, "both are of one numerics class: {:?}", got.classes);
    assert_eq!(got.into_vectors(), healthy(&texts));
}

#[test]
fn what_does_not_fit_is_split_and_its_placement_stays() {
    // More than any proof asks for at once, and little enough that halves of it fit.
    let texts: Vec<String> = (0..256).map(|n| format!("{n} {}", TEXTS[3])).collect();
    let engine = candle().with(METAL, Fault::OutOfMemory { above: 4800 });
    let batches = std::sync::Arc::clone(&engine.batches);
    let stage = Stage::new(engine);
    let model = open(&stage);
    let got = model.embed(&texts).expect("halves fit");
    assert_eq!(got.placements.len(), 1);
    assert_eq!(got.placements[0].device, METAL);
    assert!(got.tokens > 4800, "the batch of {} tokens was to be split", got.tokens);
    assert!(batches.load(Ordering::SeqCst) > 2);
    assert_eq!(got.into_vectors(), healthy(&texts));
    assert!(obstacle(&model.plan(), METAL).is_none());
}

#[test]
fn without_a_placement_the_error_has_every_reason() {
    let engine = candle()
        .with(METAL, Fault::FromBatch(2, BatchFault::Zero))
        .with(Device::Cpu, Fault::FromBatch(1, BatchFault::Error));
    let model = open(&Stage::new(engine));
    model.embed(&TEXTS).expect("the first batch is right");
    for _ in 0..2 {
        let error = model.embed(&TEXTS).expect_err("nothing is left");
        assert!(matches!(error, Error::NoPlacement { .. }));
        assert_eq!(error.retry(), Retry::Elsewhere);
        let text = error.to_string();
        for part in [
            "no placement works for this model",
            "candle/metal:0/f32",
            "[quarantined] taken out of service: a vector of zeros",
            "candle/cpu/f32",
            "[quarantined] taken out of service: the engine failed: the fake fails as configured",
            "candle/cuda:0/f32",
            "[no_such_device]",
            "hint:",
        ] {
            assert!(text.contains(part), "`{part}` is missing in:\n{text}");
        }
    }
}

#[test]
fn once_exact_numbers_were_given_no_half_ones_follow() {
    let engine = candle()
        .dtypes(&[Dtype::F32, Dtype::F16])
        .with_in(METAL, Dtype::F32, Fault::FromBatch(2, BatchFault::Nan))
        .with_in(METAL, Dtype::F16, Fault::SlowerThanCpu(0.5))
        .with_in(Device::Cpu, Dtype::F16, Fault::SlowerThanCpu(0.8));
    let model = open(&Stage::new(engine));
    let first = model.embed(&TEXTS).expect("it serves");
    let second = model.embed(&TEXTS).expect("the next serves");
    let cells = [&first, &second].map(|got| (got.placements[0].device, got.placements[0].dtype));
    assert_eq!(cells, [(METAL, Dtype::F32), (Device::Cpu, Dtype::F32)]);
    assert_eq!(first.classes, second.classes);
    let halves = model.plan().fallbacks;
    assert!(!halves.is_empty() && halves.iter().all(|viable| viable.band == Band::Half && !viable.replays));
}

#[test]
fn before_the_first_answer_a_looser_placement_may_take_over() {
    let engine = candle()
        .dtypes(&[Dtype::F32, Dtype::F16])
        .with_in(METAL, Dtype::F32, Fault::DoesNotFit)
        .with_in(METAL, Dtype::F16, Fault::SlowerThanCpu(0.5));
    let stage = Stage::new(engine);
    let model = builder(&stage.in_process().build()).device(METAL).open().expect("f16 fits");
    assert_eq!(model.placement().map(|placement| placement.dtype), Some(Dtype::F16));
    assert_eq!(obstacle(&model.plan(), METAL).map(Obstacle::code), Some("does_not_fit"));
}

#[test]
fn after_a_hang_nothing_else_on_that_device_is_tried() {
    let mut stage = stage(Fault::FromBatch(1, BatchFault::Hang));
    stage.engines.push(FakeEngine::new(EngineId::Onnx));
    let model = open(&stage);
    assert_eq!(model.embed(&TEXTS).expect("the CPU serves").placements[0].device, Device::Cpu);
    assert!(!model.plan().supports(METAL), "{}", model.plan().explain());
    let incidents = model.drain_incidents();
    assert_eq!(
        incidents.iter().map(|one| one.kind).collect::<Vec<_>>(),
        [IncidentKind::Hung],
        "{incidents:?}"
    );
}

#[test]
fn a_model_tells_how_many_batches_its_placement_computes_at_once() {
    let mut stage = Stage::new(candle());
    stage.engines[0].concurrency = 4;
    assert_eq!(open(&stage).concurrency(), 4);
}

#[test]
fn nan_of_a_graph_is_replayed_on_the_other_engine() {
    let graph = FakeEngine::new(EngineId::Onnx).reading(Format::Onnx);
    let mut stage = Stage::new(candle().with(METAL, Fault::NotBuilt));
    let graph = graph.with(Device::Cpu, Fault::NotBuilt).with(METAL, Fault::FromBatch(2, BatchFault::Nan));
    stage.engines.push(graph);
    let folder = Copy::of("tiny-bert").with_graph("tiny-bert.onnx", "model.onnx");
    let runtime = stage.in_process().build();
    let model = Model::builder(&folder.path().to_string_lossy()).runtime(&runtime).open().expect("it opens");
    let served = [(); 3].map(|()| {
        let got = model.embed(&TEXTS).expect("something serves");
        let (placement, class) = (got.placements[0].clone(), got.class(0).to_owned());
        assert_eq!(got.into_vectors(), healthy(&TEXTS));
        (placement.engine, placement.weights, class)
    });
    assert_eq!((served[0].0, served[0].1.as_str()), (EngineId::Onnx, "model.onnx"));
    assert_eq!((served[1].0, &served[1]), (EngineId::Candle, &served[2]));
    assert_ne!(served[1].2, served[0].2, "other weights are another class");
    let words = model.plan().explain();
    assert!(words.contains("[quarantined] taken out of service: a value that is not finite"), "{words}");
}

/// Runs `work`, which must come to an end.
fn bounded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_mins(4)).expect("it came to an end")
}

/// 64 threads that embed four times each; every vector must be right.
fn crowd(model: Model) -> Model {
    let want = healthy(&TEXTS);
    bounded(move || {
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    for _ in 0..4 {
                        assert_eq!(model.embed(&TEXTS).expect("it serves").into_vectors(), want);
                    }
                });
            }
        });
        model
    })
}

#[test]
fn a_fault_amid_64_threads_harms_none_of_them() {
    let all = [BatchFault::Error, BatchFault::Nan, BatchFault::Panic, BatchFault::Hang]
        .map(|mishap| [(mishap, 1), (mishap, 4)]);
    for (mishap, concurrency) in all.into_iter().flatten() {
        let mut stage = stage(Fault::FromBatch(20, mishap));
        stage.engines[0].concurrency = concurrency;
        let model = crowd(open(&stage));
        let plan = model.plan();
        quarantine(&plan, METAL);
        let refusals = plan.refused.iter().filter(|refused| refused.placement.device == METAL).count();
        assert_eq!(refusals, 1, "{mishap:?} of {concurrency} is told once:\n{}", plan.explain());
        assert_eq!(model.placement().map(|placement| placement.device), Some(Device::Cpu));
    }
}

#[test]
fn a_batch_that_waits_in_the_queue_is_not_hung() {
    let started = Instant::now();
    let model = crowd(open(&stage(Fault::Late(10))));
    assert!(started.elapsed() > 2 * SHORT, "the queue was to be longer than the timeout");
    assert_eq!(
        model.placement().map(|placement| placement.device),
        Some(METAL),
        "{}",
        model.plan().explain()
    );
}

#[test]
fn a_model_on_an_executor_that_another_hung_is_replayed_soon() {
    let stage = Stage { timeout: Duration::from_secs(2), ..stage(Fault::FromBatch(3, BatchFault::Hang)) };
    let runtime = stage.in_process().build();
    let open = || builder(&runtime).open().expect("something serves");
    let (first, second) = (open(), open());
    for model in [&first, &first, &second] {
        assert_eq!(model.embed(&TEXTS).expect("it serves").placements[0].device, METAL);
    }
    assert_eq!(first.embed(&TEXTS).expect("the CPU serves").placements[0].device, Device::Cpu);
    let started = Instant::now();
    assert_eq!(second.embed(&TEXTS).expect("the CPU serves").placements[0].device, Device::Cpu);
    assert!(started.elapsed() < stage.timeout, "it waited for an executor that was gone");
}
