//! Whether a failed request may be sent to another worker, and what the failure says about the first one.

use std::time::Duration;

use crate::workers::Outcome;

/// Maximum number of workers that a request is sent to.
pub const MAX_ATTEMPTS: u32 = 2;
/// `Retry-After` of a refusal without one.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// A worker that is silent for less than this is not at fault: the client set a short time limit.
const MIN_SILENCE: Duration = Duration::from_secs(1);
/// A worker that is silent for less than this multiple of the prediction is not at fault either.
const SILENCE_FACTOR: u32 = 3;

/// Whether a request can be repeated once a worker has begun to answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Embeddings, reranking, classification: the answer is the same each time.
    Repeatable,
    /// Text generation: another worker would generate another text.
    Generation,
}

/// How far the answer of a failed attempt came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// No byte of the answer arrived.
    None,
    /// A part of the answer arrived; the client got none of it.
    Received,
    /// The client got a part of the answer.
    Relayed,
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<'a> {
    /// The worker answered with an error status.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The value of `x-sconce-code`.
        code: Option<&'a str>,
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// The connection could not be opened, or broke.
    Disconnected,
    /// The worker did not answer in time.
    TimedOut {
        /// How long the gateway waited.
        waited: Duration,
        /// The prediction when the request was sent.
        predicted: Duration,
    },
}

impl Failure<'_> {
    /// What the failure says about the worker.
    pub fn outcome(&self) -> Outcome {
        self.verdict().0
    }

    /// Whether another worker may succeed, if the operation can be repeated and time is left.
    fn may_succeed_elsewhere(&self) -> bool {
        self.verdict().1
    }

    fn verdict(&self) -> (Outcome, bool) {
        match *self {
            Failure::Disconnected => (Outcome::Failure, true),
            Failure::TimedOut { waited, predicted } => {
                let is_fault = waited >= MIN_SILENCE && waited >= predicted.saturating_mul(SILENCE_FACTOR);
                (if is_fault { Outcome::Failure } else { Outcome::Cancelled }, true)
            }
            Failure::Refused { status, code, retry_after } => {
                let busy = Outcome::Busy { retry_after: retry_after.unwrap_or(DEFAULT_RETRY_AFTER) };
                match (code.unwrap_or_default(), status) {
                    ("not_ready" | "no_placement" | "model_fault", _) => (Outcome::ModelFailure, true),
                    // Gateways authenticate with the key of the pool.
                    ("invalid_api_key", _) => (Outcome::Failure, true),
                    // Another worker has more memory, the class or the model. A client may name another model in the body
                    // than in the path.
                    ("does_not_fit" | "class_unavailable" | "model_not_found", _) => (Outcome::Success, true),
                    // The time limit of the client has passed.
                    ("timed_out", _) => (Outcome::Cancelled, false),
                    ("rate_limited", _) => (Outcome::Success, false),
                    // An unknown code of a newer worker, or none, as of a proxy.
                    ("overloaded" | "paused", _) | (_, 429) => (busy, true),
                    (_, 500..) => (Outcome::Failure, true),
                    _ => (Outcome::Success, false),
                }
            }
        }
    }
}

/// Whether a request that failed after `attempts` attempts may be sent to another worker.
pub fn may_retry(operation: Operation, progress: Progress, attempts: u32, failure: &Failure<'_>) -> bool {
    let can_repeat = match progress {
        Progress::None => true,
        Progress::Received => operation == Operation::Repeatable,
        Progress::Relayed => false,
    };
    can_repeat && attempts < MAX_ATTEMPTS && failure.may_succeed_elsewhere()
}

/// When a client should retry after all attempts were refused: the smallest `Retry-After` of the refusals.
pub fn smallest_retry_after(refusals: impl IntoIterator<Item = Option<Duration>>) -> Duration {
    refusals.into_iter().flatten().min().unwrap_or(DEFAULT_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn refused(status: u16, code: Option<&str>) -> Failure<'_> {
        Failure::Refused { status, code, retry_after: Some(5 * SECOND) }
    }

    #[test]
    fn codes_tell_whether_to_retry_and_who_is_at_fault() {
        let (ok, failed, busy) =
            (Outcome::Success, Outcome::Failure, Outcome::Busy { retry_after: 5 * SECOND });
        for (code, status, outcome, retries) in [
            ("invalid_json", 400, ok, false),
            ("invalid_request", 422, ok, false),
            ("empty", 400, ok, false),
            ("context_length_exceeded", 400, ok, false),
            ("does_not_fit", 413, ok, true),
            ("unusual_input", 422, ok, false),
            ("too_large", 413, ok, false),
            ("unsupported_encoding", 415, ok, false),
            ("wrong_task", 424, ok, false),
            ("model_not_found", 404, ok, true),
            ("no_such_route", 404, ok, false),
            ("method_not_allowed", 405, ok, false),
            ("invalid_api_key", 401, failed, true),
            ("forbidden", 403, ok, false),
            ("overloaded", 429, busy, true),
            ("rate_limited", 429, ok, false),
            ("paused", 503, busy, true),
            ("timed_out", 503, Outcome::Cancelled, false),
            ("not_ready", 503, Outcome::ModelFailure, true),
            ("model_fault", 500, Outcome::ModelFailure, true),
            ("model_fault", 424, Outcome::ModelFailure, true),
            ("no_placement", 424, Outcome::ModelFailure, true),
            ("class_unavailable", 503, ok, true),
            ("of_a_newer_version", 503, failed, true),
            ("of_a_newer_version", 422, ok, false),
        ] {
            let failure = refused(status, Some(code));
            assert_eq!(failure.outcome(), outcome, "{code}");
            assert_eq!(may_retry(Operation::Generation, Progress::None, 1, &failure), retries, "{code}");
        }
    }

    #[test]
    fn without_a_code_the_status_tells() {
        let busy = Outcome::Busy { retry_after: 5 * SECOND };
        for (status, outcome, retries) in [
            (400, Outcome::Success, false),
            (404, Outcome::Success, false),
            (429, busy, true),
            (500, Outcome::Failure, true),
            (502, Outcome::Failure, true),
        ] {
            let failure = refused(status, None);
            assert_eq!(failure.outcome(), outcome, "{status}");
            assert_eq!(may_retry(Operation::Repeatable, Progress::None, 1, &failure), retries, "{status}");
        }
        let bare = Failure::Refused { status: 429, code: None, retry_after: None };
        assert_eq!(bare.outcome(), Outcome::Busy { retry_after: SECOND });
    }

    #[test]
    fn generations_are_repeated_before_the_first_byte_only() {
        let failure = Failure::Disconnected;
        for (operation, progress, retries) in [
            (Operation::Repeatable, Progress::None, true),
            (Operation::Repeatable, Progress::Received, true),
            (Operation::Repeatable, Progress::Relayed, false),
            (Operation::Generation, Progress::None, true),
            (Operation::Generation, Progress::Received, false),
            (Operation::Generation, Progress::Relayed, false),
        ] {
            assert_eq!(may_retry(operation, progress, 1, &failure), retries, "{operation:?} {progress:?}");
            assert!(!may_retry(operation, progress, 2, &failure), "once");
        }
    }

    #[test]
    fn a_short_time_limit_is_no_fault_of_the_worker() {
        let timed_out = |waited, predicted| Failure::TimedOut { waited, predicted }.outcome();
        assert_eq!(timed_out(SECOND / 2, SECOND / 100), Outcome::Cancelled);
        assert_eq!(timed_out(2 * SECOND, SECOND), Outcome::Cancelled);
        assert_eq!(timed_out(3 * SECOND, SECOND), Outcome::Failure);
        assert_eq!(timed_out(SECOND, SECOND / 100), Outcome::Failure);
        let silent = Failure::TimedOut { waited: SECOND, predicted: SECOND };
        assert!(may_retry(Operation::Repeatable, Progress::None, 1, &silent));
    }

    #[test]
    fn the_smallest_retry_after_is_told() {
        assert_eq!(smallest_retry_after([Some(7 * SECOND), None, Some(3 * SECOND)]), 3 * SECOND);
        assert_eq!(smallest_retry_after([None, None]), SECOND);
    }
}
