//! Executes batches: loads placements, guards their output, attributes failures, and replays batches elsewhere.

mod attempt;
mod attribution;
mod drift;
mod guard;
mod isolate;
mod loader;
mod outcome;
mod readmission;
mod second_placement;
mod serving;
mod shadow;
mod step;

pub use drift::{ShadowCheck, Verdict};
pub use outcome::{BatchOutcome, BatchOutput, Incident, IncidentKind, OnOutput, UnresolvedSequence};
pub use readmission::{Readmission, Readmitted};
pub use second_placement::{SecondLoad, SecondLoaded};
pub(crate) use serving::Serving;
pub(crate) use step::{Decoder, StepError};
