//! Failures of a placement while it is proved: obstacle, remedy and replacement.

use std::time::Duration;

use sconce::{Device, Dtype, EngineId, Obstacle};
use sconce_testkit::fake::{FakeEngine, Fault};

use crate::fakes::{CUDA, METAL, Stage, TEXTS, candle, healthy, is_alive, nvidia, obstacle};

/// What a fault is to be told as: the code of the obstacle, and a part of its remedy.
struct Row {
    fault: Fault,
    code: &'static str,
    remedy: &'static str,
}

const NONE_HERE: &str = "none here: the next placement serves";

const TABLE: [Row; 15] = [
    Row {
        fault: Fault::NotBuilt,
        code: "not_built",
        remedy: "`cargo install --path crates/cli --features fake`",
    },
    Row { fault: Fault::NoSuchDevice, code: "no_such_device", remedy: "none on this machine" },
    Row { fault: Fault::OpMissing, code: "op_missing", remedy: "`sconce doctor --manifest .`" },
    Row { fault: Fault::OpWrong, code: "op_wrong", remedy: NONE_HERE },
    Row { fault: Fault::WrongAt { length: 77, longest: false }, code: "model_wrong", remedy: NONE_HERE },
    Row { fault: Fault::WrongAt { length: 77, longest: true }, code: "model_wrong", remedy: NONE_HERE },
    Row { fault: Fault::NanAtMultiplesOf(32), code: "model_wrong", remedy: NONE_HERE },
    Row { fault: Fault::Zeros, code: "model_wrong", remedy: NONE_HERE },
    Row { fault: Fault::Abort, code: "crashed", remedy: "`sconce doctor --fresh`" },
    Row { fault: Fault::Kill, code: "killed", remedy: "`sconce doctor --fresh`" },
    Row { fault: Fault::Panic, code: "crashed", remedy: "`sconce doctor --fresh`" },
    Row { fault: Fault::OutOfMemory { above: 64 }, code: "does_not_fit", remedy: "another `--device`" },
    Row { fault: Fault::ProviderFails, code: "provider_failed", remedy: "`FakeExecutionProvider`" },
    Row { fault: Fault::DoesNotFit, code: "does_not_fit", remedy: "another `--device`" },
    Row { fault: Fault::WrongWeights, code: "model_wrong", remedy: NONE_HERE },
];

/// Plans and opens on a machine whose accelerator has a fault; the obstacle that was found.
fn check(stage: &Stage, device: Device, code: &str, remedy: &str) -> Obstacle {
    let plan = stage.plan();
    let found = obstacle(&plan, device).unwrap_or_else(|| panic!("{code} was not seen:\n{}", plan.explain()));
    assert_eq!(found.code(), code, "{found}");
    assert!(found.remedy().to_string().contains(remedy), "{code}: {}", found.remedy());
    assert!(plan.explain().contains(&found.remedy().to_string()), "{}", plan.explain());
    let chosen = plan.chosen.as_ref().expect("the next best is there");
    assert_eq!(chosen.placement.device, Device::Cpu, "{}", plan.explain());

    let embeddings = stage.model().embed(&TEXTS).expect("the next best serves");
    assert_eq!(embeddings.placements, std::slice::from_ref(&chosen.placement), "{code}");
    assert_eq!(embeddings.into_vectors(), healthy(&TEXTS), "{code}");
    found.clone()
}

#[test]
fn a_healthy_accelerator_serves() {
    let stage = Stage::new(candle());
    let plan = stage.plan();
    assert_eq!(plan.chosen.as_ref().map(|chosen| chosen.placement.device), Some(METAL), "{}", plan.explain());
    let embeddings = stage.model().embed(&TEXTS).expect("it serves");
    assert_eq!(embeddings.placements[0].device, METAL);
    assert_eq!(embeddings.into_vectors(), healthy(&TEXTS));
}

#[test]
fn every_fault_has_its_obstacle_and_its_remedy_and_the_next_best_serves() {
    for Row { fault, code, remedy } in TABLE {
        let stage = Stage::new(candle().with(METAL, fault));
        let found = check(&stage, METAL, code, remedy);
        println!("{fault:?}: [{}] {found}; {}", found.code(), found.remedy());
        assert!(stage.starts().iter().all(|&pid| !is_alive(pid)), "{fault:?} left a child behind");
    }
}

#[test]
fn on_a_machine_with_nvidia_the_same_holds() {
    let fault = Fault::NanAtMultiplesOf(32);
    let stage = Stage { hardware: nvidia(), ..Stage::new(candle().with(CUDA, fault)) };
    check(&stage, CUDA, "model_wrong", NONE_HERE);
}

#[test]
fn an_abort_is_reported_with_its_signal_and_case() {
    let stage = Stage::new(candle().with(METAL, Fault::Abort));
    let found = check(&stage, METAL, "crashed", "update the driver");
    assert!(found.to_string().contains("SIGABRT"), "{found}");
    assert!(found.to_string().contains("twin of lengths [33]"), "{found}");
    assert!(!stage.starts().is_empty() && stage.starts().iter().all(|&pid| !is_alive(pid)));
}

#[test]
fn a_hang_costs_its_time_limit_once_a_start_and_then_there_is_a_backoff() {
    let limit = Duration::from_secs(2);
    let stage = Stage { limit, ..Stage::new(candle().with(METAL, Fault::Hang)) };
    let found = check(&stage, METAL, "timed_out", "`sconce doctor --fresh`");
    assert!(found.to_string().contains("twin of lengths [33] in 2.0 s"), "{found}");
    assert!(!stage.starts().is_empty() && stage.starts().iter().all(|&pid| !is_alive(pid)));
    // One start planned and one opened: each tried it once.
    let tried = stage.starts().len();
    let plan = stage.plan();
    assert_eq!(obstacle(&plan, METAL).map(Obstacle::code), Some("timed_out"));
    assert_eq!(stage.starts().len(), tried, "the hang was tried again");
}

#[test]
fn an_accelerator_that_is_slower_than_the_cpu_stays_a_fallback_and_is_explained() {
    let stage = Stage::new(candle().with(METAL, Fault::SlowerThanCpu(3.0)));
    let plan = stage.plan();
    assert_eq!(plan.chosen.as_ref().map(|chosen| chosen.placement.device), Some(Device::Cpu));
    let metal = plan.fallbacks.iter().find(|viable| viable.placement.device == METAL).expect("it works");
    let note = metal.note.as_ref().expect("it has a note");
    assert_eq!(note.code(), "slower");
    assert!(matches!(note, Obstacle::Slower { ratio, .. } if (ratio - 3.0).abs() < 0.01), "{note}");
    assert!(note.remedy().to_string().starts_with("none needed"));
    let words = plan.explain();
    assert!(words.contains("3.0x slower than candle/cpu/f32"), "{words}");
    assert!(words.contains("metal:0 works here and is slower than the processor"), "{words}");
    assert_eq!(stage.model().embed(&TEXTS).expect("the CPU serves").placements[0].device, Device::Cpu);
}

#[test]
fn a_fault_in_one_dtype_leaves_the_others_of_its_device() {
    let engine = candle().dtypes(&[Dtype::F32, Dtype::F16]).with_in(METAL, Dtype::F16, Fault::Zeros);
    let plan = Stage::new(engine).plan();
    let chosen = plan.chosen.as_ref().expect("something works");
    assert_eq!((chosen.placement.device, chosen.placement.dtype), (METAL, Dtype::F32), "{}", plan.explain());
    assert_eq!(obstacle(&plan, METAL).map(Obstacle::code), Some("model_wrong"));
}

#[test]
fn another_engine_on_the_same_device_takes_over() {
    let mut stage = Stage::new(candle().with(METAL, Fault::OpMissing));
    stage.engines.push(FakeEngine::new(EngineId::Onnx));
    let embeddings = stage.model().embed(&TEXTS).expect("the other engine serves");
    assert_eq!((embeddings.placements[0].engine, embeddings.placements[0].device), (EngineId::Onnx, METAL));
    assert_eq!(embeddings.into_vectors(), healthy(&TEXTS));
}

#[test]
fn where_nothing_works_the_error_tells_every_reason() {
    let engine = candle().with(METAL, Fault::OpMissing).with(Device::Cpu, Fault::Zeros);
    let stage = Stage::new(engine);
    let error = crate::fakes::builder(&stage.runtime()).open().map(|_| ()).expect_err("nothing works");
    let text = error.to_string();
    for part in [
        "no placement works",
        "[load_failed]",
        "[model_wrong]",
        "as the reference",
        "[no_such_device]",
        "hint:",
    ] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
}
