//! The result of a diagnosis: resolved crates, findings, the fix, and its verification.

use std::path::PathBuf;

use crate::checks::Finding;
use crate::fix::Fix;
use crate::tree::Package;

/// The findings of a project and the edits that fix them. Serializes to the report of `doctor --manifest --json`.
#[derive(Debug)]
pub struct Diagnosis {
    pub(crate) manifest: PathBuf,
    /// Resolved Candle crates, by target.
    pub(crate) resolved: Vec<(String, Vec<Package>)>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) fix: Fix,
    pub(crate) verification: Verification,
}

impl Diagnosis {
    /// Whether there are no errors. Notes do not count.
    pub fn is_healthy(&self) -> bool {
        !self.findings.iter().any(Finding::is_error)
    }
}

/// The outcome of the fix on an overlay of the project.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// There was no edit to verify.
    Skipped,
    /// No error remains.
    Passed,
    /// These errors remain.
    Failed(Vec<Finding>),
    /// Cargo rejected the edited manifests, with this message.
    Rejected(String),
}
