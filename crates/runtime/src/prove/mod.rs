//! Evidence: probes placements in a child process or on a watched thread, judges the results and stores them.

pub(crate) mod canary;
mod child;
mod deadline;
mod fingerprint;
mod gather;
mod in_process;
mod launch;
mod prover;
mod request;
pub(crate) mod store;
mod texts;

pub use child::{CHILD_ARGUMENT, run_child};
pub use gather::{GatheredEvidence, OpFindings, ProofDepth};
pub(crate) use gather::{Gatherer, numerics_class};
pub(crate) use launch::Launch;
pub(crate) use prover::Prover;
pub use request::ProbeRequest;
pub(crate) use texts::CanaryTexts;
