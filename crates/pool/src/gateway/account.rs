//! Accounts for each forwarded request: it ends in exactly one outcome.

use std::sync::Arc;
use std::time::Instant;

use super::state::Gateway;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// The client got its answer.
    Ok,
    /// The client got a refusal.
    Refused,
    /// The pool failed.
    Failed,
    /// The client left.
    Cancelled,
}

impl RequestOutcome {
    /// The metric label.
    pub(super) fn label(self) -> &'static str {
        match self {
            RequestOutcome::Ok => "ok",
            RequestOutcome::Refused => "refused",
            RequestOutcome::Failed => "failed",
            RequestOutcome::Cancelled => "cancelled",
        }
    }
}

/// A request that has not ended. It counts as cancelled if it is dropped before.
pub(super) struct Account {
    gateway: Arc<Gateway>,
    started: Instant,
    ended: bool,
}

impl Account {
    pub(super) fn new(gateway: &Arc<Gateway>) -> Account {
        Account { gateway: Arc::clone(gateway), started: Instant::now(), ended: false }
    }

    /// Records the time to the headers of an answer.
    pub(super) fn answered(&self) {
        self.gateway.metrics.seconds.observe(self.started.elapsed().as_secs_f64());
    }

    /// Ends the request.
    pub(super) fn end(mut self, outcome: RequestOutcome) {
        self.count(outcome);
    }

    fn count(&mut self, outcome: RequestOutcome) {
        if !std::mem::replace(&mut self.ended, true) {
            self.gateway.metrics.requests.with_label_values(&[outcome.label()]).inc();
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.count(RequestOutcome::Cancelled);
    }
}
