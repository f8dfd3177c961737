//! What an attempt means: for the client, and for later requests to its worker.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use sconce_http::refusal::CODE_HEADER;

use super::attempt::{Attempt, AttemptError};
use super::headers::{CLASS_HEADER, retry_after};
use super::routes::Route;
use crate::balancer::Outcome;
use crate::class::{NumericsClass, Pin};
use crate::retry::{Failure, Operation, Progress, may_retry};

/// What happens with an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The answer is passed on.
    Deliver,
    /// The attempt failed.
    Fail {
        /// Why, for metrics.
        code: String,
        /// What it says about the worker.
        outcome: Outcome,
        /// Whether another worker may answer.
        retry: bool,
    },
}

/// Judges an attempt; `attempts` workers may have seen the request.
pub(super) fn judge(attempt: &Attempt, route: &Route, pin: Option<&Pin>, attempts: u32) -> Verdict {
    let failure = match &attempt.answer {
        Ok(response) if response.status().is_success() => {
            let is_pinned = pin.is_none_or(|pin| !route.has_class() || has_class(response.headers(), pin));
            if is_pinned {
                return Verdict::Deliver;
            }
            // It answered, but its placement has changed since it registered.
            refused(StatusCode::SERVICE_UNAVAILABLE, Some("class_unavailable"), response.headers())
        }
        Ok(response) => refused(response.status(), code(response.headers()), response.headers()),
        Err(AttemptError::TimedOut) => {
            Failure::TimedOut { waited: attempt.took, predicted: attempt.choice.predicted }
        }
        Err(AttemptError::Connect(_) | AttemptError::Lost(_) | AttemptError::Dead) => Failure::Disconnected,
    };
    let operation = if route.generates() { Operation::Generation } else { Operation::Repeatable };
    let retry = may_retry(operation, Progress::None, attempts, &failure);
    Verdict::Fail { code: name(&failure), outcome: failure.outcome(), retry }
}

fn refused<'a>(status: StatusCode, code: Option<&'a str>, headers: &HeaderMap) -> Failure<'a> {
    let retry_after = retry_after(headers).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Failure::Refused { status: status.as_u16(), code, retry_after }
}

fn code(headers: &HeaderMap) -> Option<&str> {
    headers.get(CODE_HEADER)?.to_str().ok()
}

fn name(failure: &Failure<'_>) -> String {
    match failure {
        Failure::Refused { status, code, .. } => code.map_or_else(|| status.to_string(), str::to_owned),
        Failure::Disconnected => "disconnected".to_owned(),
        Failure::TimedOut { .. } => "timed_out".to_owned(),
    }
}

/// Whether all classes of an answer satisfy a pin.
fn has_class(headers: &HeaderMap, pin: &Pin) -> bool {
    let classes = headers.get(CLASS_HEADER).and_then(|classes| classes.to_str().ok());
    let admits = |class: &str| class.trim().parse::<NumericsClass>().is_ok_and(|class| pin.admits(&class));
    classes.is_some_and(|classes| classes.split(',').all(admits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_an_answer_must_satisfy_the_pin() {
        let pin = Pin { class: "aa-half".parse().expect("a class"), allow_tighter: false };
        let answered = |class: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CLASS_HEADER, class.parse().expect("a value"));
            has_class(&headers, &pin)
        };
        assert!(answered("aa-half") && answered("aa-half, aa-half"));
        for class in ["ab-half", "aa-exact", "aa-half, ab-half", "", "aa"] {
            assert!(!answered(class), "{class}");
        }
        assert!(!has_class(&HeaderMap::new(), &pin), "the class must be named");
    }

    #[test]
    fn refusals_are_known_by_code_else_by_status() {
        let mut headers = HeaderMap::new();
        headers.insert(CODE_HEADER, "overloaded".parse().expect("a value"));
        headers.insert("retry-after", "7".parse().expect("a value"));
        let failure = refused(StatusCode::TOO_MANY_REQUESTS, code(&headers), &headers);
        assert_eq!(failure.outcome(), Outcome::Busy { retry_after: Duration::from_secs(7) });
        assert_eq!(name(&failure), "overloaded");
        let bare = refused(StatusCode::BAD_GATEWAY, None, &HeaderMap::new());
        assert_eq!((name(&bare).as_str(), bare.outcome()), ("502", Outcome::Failure));
    }
}
