//! The child's side: reads a question on standard input, answers case by case on standard output.

use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;

use sconce_core::engine::Engine;
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::{ProbeCase, Sample};

use super::{Question, is_last};
use crate::lane::panic_message;

/// The argument by which a program knows that it was started to prove.
pub const ARGUMENT: &str = "__sconce_prove";
/// What stands before every answer, so that what a driver prints is not taken for one.
pub(super) const MARK: &str = "sconce-answer ";

/// Answers the question on standard input with one of `engines`. For a program that was started as a prover.
pub fn child(engines: &[Arc<dyn Engine>]) {
    let Ok(question) = serde_json::from_reader::<_, Question>(io::stdin().lock()) else { return };
    let engine = engines.iter().find(|engine| engine.id() == question.placement.engine);
    for case in &question.cases {
        let answer = match engine {
            Some(engine) => answer(engine.as_ref(), &question, case),
            None => Err(Obstacle::engine_not_in_this_version(question.placement.engine)),
        };
        let stop = is_last(case, &answer);
        let line = serde_json::to_string(&answer).unwrap_or_default();
        let mut out = io::stdout().lock();
        if writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush()).is_err() || stop {
            return;
        }
    }
}

/// One case, with panics caught.
pub(super) fn answer(engine: &dyn Engine, question: &Question, case: &ProbeCase) -> Result<Sample, Obstacle> {
    let run = AssertUnwindSafe(|| engine.probe(&question.subject, &question.placement, case));
    let mut sample = catch_unwind(run).unwrap_or_else(|panic| {
        Err(Obstacle::Crashed {
            case: case.to_string(),
            how: format!("panicked: {}", panic_message(&*panic)),
        })
    })?;
    if matches!(case, ProbeCase::Canary { .. }) {
        sample.memory = resident();
    }
    Ok(sample)
}

/// Bytes that this process holds.
fn resident() -> Option<u64> {
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        return line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kilobytes| kilobytes * 1024);
    }
    let output =
        Command::new("ps").args(["-o", "rss=", "-p", &std::process::id().to_string()]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
