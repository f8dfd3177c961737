//! The in-process prover: it detects a hang, and the crash of an earlier run.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use sconce::prove::ProofDepth;
use sconce::{Device, Obstacle, Runtime};
use sconce_testkit::fake::{BatchFault, Fault};
use sconce_testkit::goldens;

use crate::fakes::{METAL, Stage, TEXTS, builder, candle, healthy, obstacle, plan};

fn twin(runtime: &Runtime) -> sconce::Plan {
    plan(runtime, &goldens::folder("tiny-bert"), ProofDepth::Twin)
}

/// The markers in a stage's folder.
fn markers(stage: &Stage) -> Vec<PathBuf> {
    let entries = fs::read_dir(stage.home.path()).expect("the folder is there").flatten();
    let is_marker = |path: &PathBuf| path.to_string_lossy().contains("underway-");
    entries.map(|entry| entry.path()).filter(is_marker).collect()
}

/// Names the folder of a run that is to die.
const DOOMED: &str = "SCONCE_TEST_DOOMED";

#[test]
fn doomed_child() {
    let Some(home) = std::env::var_os(DOOMED) else { return };
    twin(&Stage::new(candle().with(METAL, Fault::Abort)).in_process().home(home).build());
}

/// A folder in which a run that proved in its own process really died.
fn after_a_crash() -> Stage {
    let stage = Stage::new(candle());
    let output = Command::new(std::env::current_exe().expect("this binary has a path"))
        .args(["in_process_prover::doomed_child", "--exact"])
        .env(DOOMED, stage.home.path())
        .env("TMPDIR", stage.home.path())
        .output()
        .expect("the child starts");
    assert!(!output.status.success());
    assert_eq!(markers(&stage).len(), 1, "the child left its marker");
    stage
}

#[test]
fn a_hang_is_timed_out_and_the_next_best_serves() {
    let stage = Stage { limit: Duration::from_secs(1), ..Stage::new(candle().with(METAL, Fault::Hang)) };
    let runtime = stage.in_process().build();
    let plan = twin(&runtime);
    let found = obstacle(&plan, METAL).expect("the hang is seen");
    assert_eq!(found.code(), "timed_out", "{found}");
    let got = builder(&runtime).open().expect("the CPU serves").embed(&TEXTS).expect("the CPU serves");
    assert_eq!(got.placements[0].device, Device::Cpu);
    assert_eq!(got.into_vectors(), healthy(&TEXTS));
    assert!(markers(&stage).is_empty(), "{:?}", markers(&stage));
}

#[test]
fn a_panic_is_a_crash_that_this_program_survives() {
    let stage = Stage::new(candle().with(METAL, Fault::Panic));
    let plan = twin(&stage.in_process().build());
    assert_eq!(obstacle(&plan, METAL).map(Obstacle::code), Some("crashed"));
}

#[test]
fn a_run_that_died_is_a_crash_at_the_next_start() {
    let stage = after_a_crash();
    let plan = twin(&stage.in_process().build());
    let found = obstacle(&plan, METAL).expect("the crash is told");
    assert_eq!(found.code(), "crashed");
    assert!(found.to_string().contains("twin of lengths [33]: an earlier run"), "{found}");
    assert!(found.remedy().to_string().contains("`sconce doctor --fresh`"));
    assert_eq!(plan.chosen.map(|chosen| chosen.placement.device), Some(Device::Cpu));
    assert!(markers(&stage).is_empty());
}

#[test]
fn a_locked_marker_belongs_to_a_live_process() {
    let stage = after_a_crash();
    let held = File::open(&markers(&stage)[0]).expect("the marker opens");
    held.lock().expect("the marker can be locked");
    let plan = twin(&stage.in_process().build());
    assert_eq!(plan.chosen.map(|chosen| chosen.placement.device), Some(METAL));
}

#[test]
fn runs_beside_each_other_do_not_take_each_other_for_dead() {
    let stage = Stage::new(candle());
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                barrier.wait();
                let plan = twin(&stage.in_process().build());
                assert!(obstacle(&plan, METAL).is_none(), "{}", plan.explain());
            });
        }
    });
}

#[test]
fn an_op_that_hangs_does_not_shift_the_answers_of_the_others() {
    let stage = Stage::new(candle().with(METAL, Fault::OpLate(900)));
    let stage = Stage { limit: Duration::from_millis(600), ..stage };
    let found = stage.in_process().build().ops(&mut |_| {});
    let metal = found.iter().find(|found| found.placement.device == METAL).expect("it was asked");
    let codes: Vec<&str> = metal.obstacles.iter().map(Obstacle::code).collect();
    assert_eq!(codes, ["timed_out"]);
}

#[test]
fn what_fails_at_run_time_is_proved_anew_at_the_next_start() {
    let stage = Stage::new(candle().with(METAL, Fault::FromBatch(1, BatchFault::Zero)));
    for _ in 0..2 {
        let model = builder(&stage.in_process().build()).open().expect("it serves");
        assert_eq!(model.placement().map(|placement| placement.device), Some(METAL));
        model.embed(&TEXTS).expect("the CPU serves");
        assert_eq!(model.placement().map(|placement| placement.device), Some(Device::Cpu));
    }
}
