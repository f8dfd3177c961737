//! Evidence on disk: it is reused while its key is equal, and gathered again otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sconce::card::Overrides;
use sconce::prove::{GatheredEvidence, ProofDepth};
use sconce::{
    Constraints, Device, Dtype, Event, ModelSource, Obstacle, Placement, Plan, PoolingMode, Runtime, Task,
};
use sconce_core::hardware::Hardware;
use sconce_testkit::fake::{FakeEngine, Fault};
use sconce_testkit::{byte_model, goldens};
use serde_json::json;

use crate::fakes::{METAL, Stage, TEXTS, builder, candle, healthy, mac, obstacle, plan, spec};
use crate::support::Copy;

fn gather(runtime: &Runtime, folder: &Path, depth: ProofDepth) -> GatheredEvidence {
    let spec = spec(runtime, folder);
    runtime.gather_evidence(&spec, depth, &|_| true, &mut |_| {}).expect("the golden can be surveyed")
}

/// How many children the stage starts to gather tiny-bert without its weights.
fn children(stage: &Stage) -> usize {
    let before = stage.starts().len();
    gather(&stage.runtime(), &goldens::folder("tiny-bert"), ProofDepth::Twin);
    stage.starts().len() - before
}

/// The findings of a stage, by the kind that their file names begin with.
fn findings(stage: &Stage, kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(stage.home.path().join("evidence")).into_iter().flatten().flatten();
    let of_kind =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(kind));
    entries.map(|entry| entry.path()).filter(of_kind).collect()
}

#[test]
fn a_second_plan_asks_nothing() {
    let stage = Stage::new(candle());
    let first = stage.plan();
    let started = stage.starts().len();
    assert!(started > 0);
    let second = stage.plan();
    assert_eq!(stage.starts().len(), started);
    assert_eq!(first.explain(), second.explain());
}

#[test]
fn with_the_real_engines_a_second_plan_asks_nothing_either() {
    let home = tempfile::tempdir().expect("a folder can be made");
    let runtime = || Runtime::builder().home(home.path()).hardware(mac()).threads(2).offline(true).build();
    let folder = goldens::folder("tiny-bert");
    plan(&runtime(), &folder, ProofDepth::Twin);
    let runtime = runtime();
    let second = plan(&runtime, &folder, ProofDepth::Twin);
    assert_eq!(gather(&runtime, &folder, ProofDepth::Twin).proved, 0);
    assert!(second.chosen.is_some());
}

#[test]
fn every_obstacle_that_was_found_is_known_the_second_time() {
    for fault in [
        Fault::OpMissing,
        Fault::OpWrong,
        Fault::NanAtMultiplesOf(32),
        Fault::Zeros,
        Fault::Abort,
        Fault::Panic,
        Fault::OutOfMemory { above: 64 },
        Fault::DoesNotFit,
        Fault::WrongWeights,
        Fault::NanWeights,
    ] {
        let stage = Stage::new(candle().with(METAL, fault));
        let first = stage.plan();
        let started = stage.starts().len();
        assert_eq!(stage.plan().explain(), first.explain(), "{fault:?}");
        assert_eq!(stage.starts().len(), started, "{fault:?} was tried again");
    }
}

#[test]
fn a_change_of_any_part_of_the_fingerprint_is_proved_anew() {
    type Change = fn(&mut Hardware);
    let changes: [(&str, Change, bool); 9] = [
        ("os", |mac| mac.os = "macos 15.6".to_owned(), true),
        ("arch", |mac| mac.arch = "x86_64".to_owned(), true),
        ("cpu", |mac| mac.cpu.model = "Apple M10".to_owned(), true),
        ("flags", |mac| mac.cpu.flags.push("sme".to_owned()), true),
        ("cores", |mac| mac.cpu.cores = 4, true),
        ("gpu", |mac| mac.gpus[0].name = "Apple M10".to_owned(), true),
        ("gpu memory", |mac| mac.gpus[0].memory = Some(1 << 30), true),
        ("driver", |mac| mac.gpus[0].driver = Some("Metal 5".to_owned()), true),
        ("who saw it", |mac| mac.gpus[0].seen_by = "another tool".to_owned(), false),
    ];
    let mut stage = Stage::new(candle());
    let all = children(&stage);
    assert_eq!(children(&stage), 0);
    for (part, change, counts) in changes {
        stage.hardware = mac();
        change(&mut stage.hardware);
        let asked = children(&stage);
        assert_eq!(asked > 0, counts, "{part}: {asked} of {all} children");
        assert_eq!(children(&stage), 0, "{part}");
    }
    stage.hardware = mac();
    assert_eq!(children(&stage), 0, "what was known of the machine as it was is known still");
    stage.engines[0].build = "fake candle 2".to_owned();
    assert_eq!(children(&stage), all, "build");
}

#[test]
fn another_driver_says_nothing_about_the_cpu() {
    let mut stage = Stage::new(candle());
    gather(&stage.runtime(), &goldens::folder("tiny-bert"), ProofDepth::Twin);
    stage.hardware.gpus[0].driver = Some("Metal 5".to_owned());
    assert_eq!(gather(&stage.runtime(), &goldens::folder("tiny-bert"), ProofDepth::Twin).proved, 1);
}

#[test]
fn other_weights_are_tried_again_and_their_architecture_is_not() {
    let stage = Stage::new(candle());
    let folder = goldens::copy("tiny-bert", &stage.home.path().join("model"));
    gather(&stage.runtime(), &folder, ProofDepth::Canary);
    let (twins, canaries) = (findings(&stage, "twin").len(), findings(&stage, "canary").len());
    assert_eq!((twins, canaries), (2, 2));

    let weights = folder.join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("the weights are there");
    *bytes.last_mut().expect("the weights are not empty") ^= 1;
    fs::write(&weights, bytes).expect("the weights can be written");
    let started = stage.starts().len();
    gather(&stage.runtime(), &folder, ProofDepth::Canary);
    // The CPU's canary, the accelerator's, and the reference's for that.
    assert_eq!(stage.starts().len() - started, 3);
    assert_eq!(findings(&stage, "twin").len(), twins);
    assert_eq!(findings(&stage, "canary").len(), 2 * canaries);
}

#[test]
fn checkpoints_of_one_architecture_share_what_was_found_about_it() {
    let stage = Stage::new(candle());
    assert!(children(&stage) > 0);
    let other = goldens::copy("tiny-bert", &stage.home.path().join("other"));
    assert_eq!(gather(&stage.runtime(), &other, ProofDepth::Twin).proved, 0);
    assert!(gather(&stage.runtime(), &goldens::folder("tiny-roberta"), ProofDepth::Twin).proved > 0);
}

#[test]
fn evidence_that_can_not_be_read_is_gathered_again() {
    let stage = Stage::new(candle());
    let first = stage.plan();
    for damage in ["", "{", "[]", "{\"found\": 7}", "{\"found\": {\"Ok\": {\"error\": null}}}"] {
        for kind in ["twin", "speed", "canary"] {
            for file in findings(&stage, kind) {
                fs::write(file, damage).expect("evidence can be damaged");
            }
        }
        let started = stage.starts().len();
        assert_eq!(stage.plan().explain(), first.explain(), "{damage}");
        assert!(stage.starts().len() > started, "{damage} was believed");
    }
}

#[test]
fn a_folder_that_can_not_be_written_stops_nobody() {
    let stage = Stage::new(candle().with(METAL, Fault::Zeros));
    let file = stage.home.path().join("file");
    fs::write(&file, "in the way").expect("a file can be written");
    let runtime = stage.in_process().home(file.join("home")).build();
    let model = builder(&runtime).open().expect("the CPU serves");
    let got = model.embed(&TEXTS).expect("the CPU serves");
    assert_eq!(got.placements[0].device, Device::Cpu);
    assert_eq!(got.into_vectors(), healthy(&TEXTS));
    assert_eq!(runtime.evidence().1, 0);
}

#[test]
fn a_prover_that_does_not_start_is_reported_and_not_stored() {
    let stage = Stage::new(candle());
    let absent = stage.in_process().prover(&Command::new("no-such-prover")).build();
    let failed = plan(&absent, &goldens::folder("tiny-bert"), ProofDepth::Twin);
    assert!(failed.chosen.is_none());
    assert_eq!(obstacle(&failed, METAL).map(Obstacle::code), Some("load_failed"));
    assert!(failed.explain().contains("no-such-prover"), "{}", failed.explain());
    assert_eq!(stage.plan().chosen.map(|chosen| chosen.placement.device), Some(METAL));
}

#[test]
fn a_child_computes_on_the_threads_of_its_runtime() {
    let stage = Stage::new(candle());
    for threads in [1, 3] {
        let runtime =
            stage.in_children().threads(threads).home(stage.home.path().join(threads.to_string())).build();
        plan(&runtime, &goldens::folder("tiny-bert"), ProofDepth::Twin);
        assert_eq!(stage.threads(), Some(threads));
    }
}

#[test]
fn the_memory_of_a_child_is_known_while_it_runs() {
    let stage = Stage::new(candle());
    let runtime = stage.runtime();
    let spec = spec(&runtime, &goldens::folder("tiny-bert"));
    let mut most = 0;
    runtime
        .gather_evidence(&spec, ProofDepth::Twin, &|_| true, &mut |event| {
            if matches!(event, Event::Proving { done: 1.., .. }) {
                most = most.max(runtime.prover_resident());
            }
        })
        .expect("it can be surveyed");
    assert!(most > 1 << 20, "{most}");
    assert_eq!(runtime.prover_resident(), 0);
}

#[test]
fn what_a_prover_will_take_is_claimed_until_the_weights_are_proved() {
    let stage = Stage::new(candle());
    let claim = || builder(&stage.runtime()).prover_claim(&mut |_| {}).expect("it can be claimed");
    let weights = spec(&stage.runtime(), &goldens::folder("tiny-bert")).card.weights[0].bytes;
    assert!(claim() > weights, "{} {weights}", claim());
    assert!(stage.starts().is_empty(), "nothing is tried for it");
    stage.model();
    assert_eq!(claim(), 0);
}

/// tiny-bert for texts of at most `longest` tokens.
fn gather_up_to(stage: &Stage, folder: &Path, longest: usize) -> GatheredEvidence {
    let runtime = stage.runtime();
    let overrides = Overrides { max_length: Some(longest), ..Overrides::default() };
    let source = ModelSource::parse(&folder.to_string_lossy(), None);
    let spec = runtime.model_spec(&source, &overrides, &mut |_| {}).expect("the golden is a model");
    runtime.gather_evidence(&spec, ProofDepth::Twin, &|_| true, &mut |_| {}).expect("it can be surveyed")
}

#[test]
fn a_model_for_longer_texts_is_tried_at_those_lengths() {
    let stage = Stage::new(candle().with(METAL, Fault::WrongAt { length: 60, longest: false }));
    let folder = goldens::folder("tiny-bert");
    let short = gather_up_to(&stage, &folder, 40);
    assert!(short.evidence.values().all(|findings| findings.obstacle().is_none()), "{short:?}");
    let long = gather_up_to(&stage, &folder, 64);
    let metal =
        long.evidence.iter().find(|(placement, _)| placement.device == METAL).expect("it was tried").1;
    assert_eq!(metal.obstacle().map(Obstacle::code), Some("model_wrong"));
    assert_eq!(findings(&stage, "twin").len(), 4);
}

#[test]
fn tasks_have_evidence_of_their_own() {
    let stage = Stage::new(candle());
    let folder = tempfile::tempdir().expect("a folder");
    byte_model::write(folder.path(), None);
    let gather = |task, pooling| {
        let runtime = stage.runtime();
        let overrides =
            Overrides { task: Some(task), pooling, normalize: Some(true), ..Overrides::default() };
        let source = ModelSource::parse(&folder.path().to_string_lossy(), None);
        let spec = runtime.model_spec(&source, &overrides, &mut |_| {}).expect("it is a model");
        runtime.gather_evidence(&spec, ProofDepth::Twin, &|_| true, &mut |_| {}).expect("it can be surveyed");
        findings(&stage, "twin").len()
    };
    // The steps of a generation say nothing of long pooled texts, and these nothing of steps.
    let generates = gather(Task::Generate, None);
    let embeds = gather(Task::Embed, Some(PoolingMode::LastToken));
    assert!(generates > 0 && embeds > generates, "{generates}, then {embeds}");
    assert_eq!(gather(Task::Generate, None), embeds, "both are known now");
}

#[test]
fn a_model_of_other_sizes_is_timed_anew_and_its_architecture_is_not_tried_again() {
    let stage = Stage::new(candle());
    assert!(children(&stage) > 0);
    let (twins, speeds) = (findings(&stage, "twin").len(), findings(&stage, "speed").len());
    let smaller = Copy::of("tiny-bert").setting("config.json", "intermediate_size", json!(32));
    gather(&stage.runtime(), smaller.path(), ProofDepth::Twin);
    assert_eq!((findings(&stage, "twin").len(), findings(&stage, "speed").len()), (twins, 2 * speeds));
}

#[test]
fn weights_are_tried_again_where_those_that_they_are_compared_with_changed() {
    let stage = Stage::new(candle());
    let folder = Copy::of("tiny-bert");
    let other = fs::read(folder.file("model.safetensors")).expect("the golden has weights");
    let folder = folder.with("model.other.safetensors", other);
    gather(&stage.runtime(), folder.path(), ProofDepth::Canary);
    let before = findings(&stage, "canary").len();
    let reference =
        plan(&stage.runtime(), folder.path(), ProofDepth::Canary).reference.expect("there is one");
    let mut bytes = fs::read(folder.file(&reference.weights)).expect("the reference has weights");
    *bytes.last_mut().expect("it is not empty") ^= 1;
    let folder = folder.with(&reference.weights, bytes);
    gather(&stage.runtime(), folder.path(), ProofDepth::Canary);
    assert_eq!(findings(&stage, "canary").len(), 2 * before, "all four were compared with the old ones");
}

/// A plan of tiny-bert with the retries that were told.
fn plan_with_retries(stage: &Stage) -> (Plan, Vec<(Placement, u32)>) {
    let runtime = stage.runtime();
    let spec = spec(&runtime, &goldens::folder("tiny-bert"));
    let mut retries = Vec::new();
    let mut hear = |event: Event<'_>| {
        if let Event::Retrying { placement, attempt, why } = event {
            assert!(why.is_transient(), "{why}");
            retries.push((placement.clone(), attempt));
        }
    };
    let plan = runtime.plan(&spec, &Constraints::default(), ProofDepth::Canary, &mut hear).expect("a plan");
    (plan, retries)
}

fn halves() -> FakeEngine {
    candle().dtypes(&[Dtype::F32, Dtype::F16])
}

#[test]
fn a_prover_killed_at_each_placement_in_turn_is_tried_again_at_the_next_start() {
    for (device, dtype) in
        [(METAL, Dtype::F16), (METAL, Dtype::F32), (Device::Cpu, Dtype::F16), (Device::Cpu, Dtype::F32)]
    {
        let mut stage = Stage::new(halves().with_in(device, dtype, Fault::Kill));
        let (killed, retries) = plan_with_retries(&stage);
        assert!(retries.is_empty(), "the first start has nothing to retry: {retries:?}");
        let downgrade = killed
            .downgrades
            .iter()
            .find(|downgrade| downgrade.from.device == device && downgrade.from.dtype == dtype);
        let downgrade = downgrade.unwrap_or_else(|| panic!("no downgrade:\n{}", killed.explain()));
        assert_eq!(downgrade.why.code(), "killed", "{}", downgrade.why);
        assert!(downgrade.why.to_string().contains("SIGKILL"), "{}", downgrade.why);
        assert_eq!(downgrade.to, killed.chosen.as_ref().map(|chosen| chosen.placement.clone()));

        stage.engines = vec![halves()];
        let (healed, retries) = plan_with_retries(&stage);
        let places: Vec<_> = retries.iter().map(|(place, n)| (place.device, place.dtype, *n)).collect();
        assert_eq!(places, [(device, dtype, 2)]);
        assert_eq!(
            healed.chosen.map(|chosen| (chosen.placement.device, chosen.placement.dtype)),
            Some((METAL, Dtype::F16))
        );
        assert!(healed.downgrades.is_empty(), "{:?}", healed.downgrades);
        assert!(plan_with_retries(&stage).1.is_empty(), "what was found now is final");
    }
}

#[test]
fn a_placement_whose_prover_is_killed_again_and_again_waits_for_its_backoff() {
    let stage = Stage::new(candle().with(METAL, Fault::Kill));
    let attempts = |stage: &Stage| plan_with_retries(stage).1.into_iter().map(|(_, n)| n).collect::<Vec<_>>();
    assert!(attempts(&stage).is_empty());
    assert_eq!(attempts(&stage), [2]);
    let started = stage.starts().len();
    let (plan, retries) = plan_with_retries(&stage);
    assert_eq!((retries, stage.starts().len()), (Vec::new(), started), "the backoff has begun");
    assert_eq!(plan.downgrades.iter().map(|downgrade| downgrade.why.code()).collect::<Vec<_>>(), ["killed"]);
}

#[test]
fn a_placement_that_fails_while_it_computes_is_a_downgrade_until_it_returns() {
    let stage = Stage::new(candle().with(METAL, Fault::FromBatch(2, sconce_testkit::fake::BatchFault::Nan)));
    let model = stage.model();
    model.embed(&TEXTS).expect("the first batch is right");
    assert!(model.drain_downgrades().is_empty());
    model.embed(&TEXTS).expect("the CPU serves");
    let [downgrade] = &model.drain_downgrades()[..] else { panic!("one") };
    assert_eq!((downgrade.from.device, downgrade.why.code()), (METAL, "quarantined"));
    assert_eq!(downgrade.to.as_ref().map(|to| to.device), Some(Device::Cpu));
    assert!(model.drain_downgrades().is_empty(), "each is told once");
    assert_eq!(model.plan().downgrades, std::slice::from_ref(downgrade));
    let started = stage.starts().len();
    model.readmit(&downgrade.from).expect("it is right in the prover");
    assert!(stage.starts().len() > started, "it is tried although its canary is known");
    assert!(model.plan().downgrades.is_empty());
}
