//! The child's side: reads a question on standard input, answers case by case on standard output.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use sconce_core::engine::Engine;
use sconce_core::obstacle::Obstacle;
use sconce_core::probe::{ProbeCase, Sample};

use super::{Question, is_last};
use crate::executor::panic_message;
use crate::resident::resident;

/// The argument by which a program knows that it was started to prove.
pub const ARGUMENT: &str = "__sconce_prove";
/// What stands before every answer, so that what a driver prints is not taken for one.
pub(super) const MARK: &str = "sconce-answer ";

/// Answers the question on standard input with one of the engines that `engines` makes for this many threads. For a
/// program that was started as a prover.
pub fn child(engines: impl FnOnce(usize) -> Vec<Arc<dyn Engine>>) {
    let Ok(question) = serde_json::from_reader::<_, Question>(io::stdin().lock()) else { return };
    let engines = engines(question.threads);
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
