//! Puts cases to a placement without letting it hurt this program: in a child process, or on a watched thread.

mod child;
mod gather;
mod launch;
mod texts;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use sconce_core::engine::{Engine, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::Placement;
use sconce_core::probe::{ProbeCase, Sample};
use serde::{Deserialize, Serialize};

pub use child::{ARGUMENT, child};
pub use gather::{Depth, OpFindings, Survey};
pub(crate) use gather::{Gathering, canary_subject};
pub(crate) use launch::Launch;
pub(crate) use texts::Texts;

/// Cases for one placement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// The model.
    pub subject: ModelSpec,
    /// Where.
    pub placement: Placement,
    /// What.
    pub cases: Vec<ProbeCase>,
    /// Threads that compute on the CPU.
    pub threads: usize,
}

/// What came of each case, up to the first that failed.
pub(crate) type Answers = Vec<Result<Sample, Obstacle>>;

/// How cases are run.
pub(crate) enum Prover {
    /// In a process of their own: it may crash, hang or be killed.
    Child(Launch),
    /// On a thread of this one, because nobody said that this program may be started again.
    Thread(watched::Watched),
}

impl Prover {
    /// Cases run on a watched thread; what is underway is noted in `folder`.
    pub(crate) fn on_a_thread(folder: &std::path::Path) -> Prover {
        Prover::Thread(watched::Watched::new(folder))
    }

    /// Puts the question; each case may take `limit`. `answered` hears how many are done.
    pub(crate) fn ask(
        &self,
        engine: &Arc<dyn Engine>,
        question: &Question,
        limit: Duration,
        answered: &mut dyn FnMut(usize),
    ) -> Answers {
        match self {
            Prover::Child(launch) => launch.ask(question, limit, answered),
            Prover::Thread(watched) => watched.ask(engine, question, limit, answered),
        }
    }

    /// Bytes of main memory that running children have.
    pub(crate) fn resident(&self) -> u64 {
        match self {
            Prover::Child(launch) => launch.resident(),
            Prover::Thread(_) => 0,
        }
    }
}

/// Whether nothing is asked after this answer to `case`: single ops stand alone, but what did not answer in time
/// would answer the next question with the last one's numbers.
fn is_last(case: &ProbeCase, answer: &Result<Sample, Obstacle>) -> bool {
    match answer {
        Ok(_) => false,
        Err(Obstacle::TimedOut { .. }) => true,
        Err(_) => !matches!(case, ProbeCase::Op { .. }),
    }
}
