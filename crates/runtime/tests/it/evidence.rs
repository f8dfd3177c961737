//! Evidence on disk: what is known is not asked again, and what it no longer fits is not believed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sconce::prove::{Depth, Survey};
use sconce::{Device, Obstacle, Runtime};
use sconce_core::hardware::Hardware;
use sconce_testkit::fake::Fault;
use sconce_testkit::goldens;

use crate::fakes::{METAL, Stage, TEXTS, builder, candle, healthy, mac, obstacle, plan, subject};

fn survey(runtime: &Runtime, folder: &Path, depth: Depth) -> Survey {
    let subject = subject(runtime, folder);
    runtime.survey(&subject, depth, &|_| true, &mut |_| {}).expect("the golden can be surveyed")
}

/// How many children the stage starts to survey tiny-bert without its weights.
fn children(stage: &Stage) -> usize {
    let before = stage.starts().len();
    survey(&stage.runtime(), &goldens::folder("tiny-bert"), Depth::Twin);
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
    plan(&runtime(), &folder, Depth::Twin);
    let runtime = runtime();
    let second = plan(&runtime, &folder, Depth::Twin);
    assert_eq!(survey(&runtime, &folder, Depth::Twin).proved, 0);
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
    survey(&stage.runtime(), &goldens::folder("tiny-bert"), Depth::Twin);
    stage.hardware.gpus[0].driver = Some("Metal 5".to_owned());
    assert_eq!(survey(&stage.runtime(), &goldens::folder("tiny-bert"), Depth::Twin).proved, 1);
}

#[test]
fn other_weights_are_tried_again_and_their_architecture_is_not() {
    let stage = Stage::new(candle());
    let folder = goldens::copy("tiny-bert", &stage.home.path().join("model"));
    survey(&stage.runtime(), &folder, Depth::Canary);
    let (twins, canaries) = (findings(&stage, "twin").len(), findings(&stage, "canary").len());
    assert_eq!((twins, canaries), (2, 2));

    let weights = folder.join("model.safetensors");
    let mut bytes = fs::read(&weights).expect("the weights are there");
    *bytes.last_mut().expect("the weights are not empty") ^= 1;
    fs::write(&weights, bytes).expect("the weights can be written");
    let started = stage.starts().len();
    survey(&stage.runtime(), &folder, Depth::Canary);
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
    assert_eq!(survey(&stage.runtime(), &other, Depth::Twin).proved, 0);
    assert!(survey(&stage.runtime(), &goldens::folder("tiny-roberta"), Depth::Twin).proved > 0);
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
fn a_prover_that_does_not_start_is_told_and_not_remembered() {
    let stage = Stage::new(candle());
    let absent = stage.in_process().prover(&Command::new("no-such-prover")).build();
    let failed = plan(&absent, &goldens::folder("tiny-bert"), Depth::Twin);
    assert!(failed.chosen.is_none());
    assert_eq!(obstacle(&failed, METAL).map(Obstacle::code), Some("load_failed"));
    assert!(failed.explain().contains("no-such-prover"), "{}", failed.explain());
    assert_eq!(stage.plan().chosen.map(|chosen| chosen.placement.device), Some(METAL));
}
