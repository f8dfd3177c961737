//! One attempt: sends a request to a worker and waits for the headers of its answer, or for all of a short one.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Uri};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::{Request, Response};
use sconce_http::deadline::DEADLINE_HEADER;
use sconce_http::memory_budget::Reservation;
use sconce_http::refusal::{Kind, Refusal};
use tokio::time::Instant;

use super::headers::load;
use super::hedging::Race;
use super::job::Outgoing;
use super::liveness::Tracking;
use super::members::InFlight;
use super::state::Gateway;
use crate::choose::Choice;

/// Maximum bytes of an answer that is held until it is whole, so that it can be repeated elsewhere if the worker dies.
const MAX_HELD: u64 = 256 << 10;

/// Time after the deadline in which a worker may still say that it was too slow.
const GRACE: Duration = Duration::from_millis(50);

/// The body of an answer: whole, or as it arrives.
pub(super) type WorkerBody = Either<Full<Bytes>, Incoming>;

/// An attempt whose request was sent.
pub(super) struct Attempt {
    pub(super) choice: Choice,
    pub(super) in_flight: InFlight,
    pub(super) tracking: Tracking,
    /// Time until the headers of the answer.
    pub(super) took: Duration,
    pub(super) answer: Result<Response<WorkerBody>, AttemptError>,
    /// Memory of an answer that is held.
    pub(super) reservation: Option<Reservation>,
}

impl Attempt {
    /// Takes the load that the answer reports.
    pub(super) fn observe_load(&self) {
        if let Ok(answer) = &self.answer
            && let Some((requests, tokens)) = load(answer.headers())
        {
            self.in_flight.observe_load(self.choice.worker_id(), requests, tokens);
        }
    }
}

/// Why an attempt has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptError {
    /// The connection could not be made: the worker has not seen the request.
    Connect(String),
    /// The connection was lost.
    Lost(String),
    /// The worker does not answer probes either.
    Dead,
    /// The deadline has passed.
    TimedOut,
}

impl AttemptError {
    /// The refusal of a request whose last attempt failed. Once the deadline has passed, that is the reason.
    pub(super) fn refusal(&self, worker: &str, model: &str, deadline: Instant) -> Refusal {
        let reason = if Instant::now() < deadline { self } else { &AttemptError::TimedOut };
        let (kind, message) = match reason {
            AttemptError::Connect(reason) => {
                (Kind::WorkerFailed, format!("the worker `{worker}` can't be reached: {reason}"))
            }
            AttemptError::Lost(reason) => {
                (Kind::WorkerFailed, format!("the connection to the worker `{worker}` broke: {reason}"))
            }
            AttemptError::Dead => (Kind::WorkerFailed, format!("the worker `{worker}` stopped answering")),
            AttemptError::TimedOut => {
                (Kind::TimedOut, format!("the worker `{worker}` did not answer within the time limit"))
            }
        };
        Refusal::new(kind, message).for_model(model)
    }
}

/// Sends a request to the worker of `choice`.
pub(super) async fn send(
    gateway: Arc<Gateway>,
    outgoing: Arc<Outgoing>,
    choice: Choice,
    mut in_flight: InFlight,
    race: Race,
) -> Attempt {
    if outgoing.is_repeatable {
        in_flight.expect(choice.predicted, race);
    }
    let (started, tracking) = (Instant::now(), gateway.liveness.track(&choice.registration));
    let answered = async {
        let request = request(&outgoing, &choice).map_err(AttemptError::Connect)?;
        tokio::select! {
            biased;
            answer = exchange(&gateway, &outgoing, request) => answer,
            () = tracking.dead() => Err(AttemptError::Dead),
            () = tokio::time::sleep_until(outgoing.deadline + GRACE) => Err(AttemptError::TimedOut),
        }
    };
    let answered = answered.await;
    in_flight.answered();
    let (answer, reservation) = match answered {
        Ok((answer, reservation)) => (Ok(answer), reservation),
        Err(error) => (Err(error), None),
    };
    Attempt { choice, in_flight, tracking, took: started.elapsed(), answer, reservation }
}

/// Sends a request and receives the headers of its answer, and its body if it is short.
async fn exchange(
    gateway: &Gateway,
    outgoing: &Outgoing,
    request: Request<Full<Bytes>>,
) -> Result<(Response<WorkerBody>, Option<Reservation>), AttemptError> {
    let answer = gateway.client.request(request).await.map_err(|error| {
        let reason = describe(&error);
        if error.is_connect() { AttemptError::Connect(reason) } else { AttemptError::Lost(reason) }
    })?;
    let length = answer.body().size_hint().exact();
    let held = length.filter(|length| outgoing.is_repeatable && *length <= MAX_HELD);
    // Without memory to hold it, the answer is passed on as it arrives.
    let reservation = held.and_then(|length| outgoing.memory.reserve(length as usize).ok());
    if reservation.is_none() {
        return Ok((answer.map(Either::Right), None));
    }
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.map_err(|error| AttemptError::Lost(describe(&error)))?;
    Ok((Response::from_parts(parts, Either::Left(Full::new(body.to_bytes()))), reservation))
}

fn request(outgoing: &Outgoing, choice: &Choice) -> Result<Request<Full<Bytes>>, String> {
    let uri = format!("{}{}", choice.url().trim_end_matches('/'), outgoing.path);
    let uri: Uri = uri.parse().map_err(|_| format!("`{}` is not a URL", choice.url()))?;
    let mut request = Request::new(Full::new(outgoing.body.clone()));
    request.method_mut().clone_from(&outgoing.method);
    *request.uri_mut() = uri;
    request.headers_mut().clone_from(&outgoing.headers);
    if !outgoing.sends_deadline {
        return Ok(request);
    }
    let left = outgoing.deadline.saturating_duration_since(Instant::now());
    let milliseconds = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    request.headers_mut().insert(DEADLINE_HEADER, HeaderValue::from(milliseconds));
    Ok(request)
}

/// An error with its causes.
fn describe(error: &dyn std::error::Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whose_deadline_has_passed_is_refused_for_that() {
        let (past, future) = (Instant::now(), Instant::now() + Duration::from_mins(1));
        let lost = AttemptError::Lost("reset".to_owned());
        for (error, deadline, kind) in [
            (&lost, future, Kind::WorkerFailed),
            (&lost, past, Kind::TimedOut),
            (&AttemptError::Dead, future, Kind::WorkerFailed),
            (&AttemptError::Dead, past, Kind::TimedOut),
            (&AttemptError::TimedOut, past, Kind::TimedOut),
        ] {
            let refusal = error.refusal("w1", "m", deadline);
            assert_eq!(refusal.kind, kind, "{error:?}");
            assert!(refusal.message.contains("the worker `w1`"), "{}", refusal.message);
        }
    }
}
