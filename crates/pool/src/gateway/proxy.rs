//! The way of a request through a gateway: body, model, pin, attempts, answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, State};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use hyper::body::Bytes;
use sconce_http::keys::Principal;
use sconce_http::memory_budget::RequestMemory;
use sconce_http::refusal::{CODE_HEADER, Dialect, Kind, Refusal, Refused};
use sconce_http::telemetry::{RequestRecord, Traceparent};
use sconce_http::{body, deadline};
use tokio::time::Instant;

use super::account::{Account, RequestOutcome};
use super::answer::{AnswerBody, End};
use super::attempt::Attempt;
use super::attempts;
use super::events::Events;
use super::job::{BYTES_PER_TOKEN, Job, Outgoing};
use super::routes::{self, BodyName, Route};
use super::state::Gateway;
use super::{cold, headers, model_name, prefix};
use crate::balancer::Outcome;
use crate::choose::Request;

/// Timeout of a generation whose client names none. Workers limit the time to the first token.
const GENERATION_LIMIT: Duration = Duration::from_hours(1);

/// Request extension: the path before `/models/NAME` was removed, and the name.
#[derive(Clone, Debug)]
pub(super) struct PathModel {
    pub(super) path: PathAndQuery,
    pub(super) name: String,
}

/// Forwards a request to a worker.
pub(super) async fn forward(
    State(gateway): State<Arc<Gateway>>,
    request: axum::extract::Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let dialect = Dialect::of_path(path);
    let Some(route) = routes::find(path) else {
        return Refusal::new(Kind::NoRoute, "unknown route").respond(dialect);
    };
    let account = Account::new(&gateway);
    let answered = async {
        let job = prepare(&gateway, route, &parts, body).await?;
        let attempt = attempts::run(&gateway, &job).await;
        let attempt = match attempt {
            Ok(attempt) => attempt,
            Err(refusal) => {
                gateway.rate_limits.refund(job.principal, job.tokens);
                note_overload(&gateway, &job.model, &refusal);
                return Err(refusal);
            }
        };
        Ok((job, attempt))
    };
    match answered.await {
        Ok((job, attempt)) => deliver(&gateway, &job, attempt, account),
        Err(refusal) => {
            account.end(if is_failure(&refusal) { RequestOutcome::Failed } else { RequestOutcome::Refused });
            refusal.respond(dialect)
        }
    }
}

/// Tells the gateway that places models that all replicas of a model are busy.
fn note_overload(gateway: &Gateway, model: &str, refusal: &Refusal) {
    if refusal.kind == Kind::Overloaded
        && let Some(desired) = gateway.placement.find(model)
    {
        gateway.placement.note_overload(&desired.model);
    }
}

/// Whether the pool failed, rather than refused.
fn is_failure(refusal: &Refusal) -> bool {
    matches!(refusal.kind, Kind::WorkerFailed | Kind::TimedOut)
}

/// Reads the body and finds model and pin.
async fn prepare(
    gateway: &Arc<Gateway>,
    route: &'static Route,
    parts: &Parts,
    body: Body,
) -> Result<Job, Refusal> {
    let settings = gateway.edge.settings();
    let started = Instant::now();
    let principal = parts.extensions.get::<Principal>().copied().unwrap_or_default();
    gateway.rate_limits.charge(principal, 0)?;
    let asked = deadline::remaining(&parts.headers)?;
    let memory = RequestMemory::new(&gateway.edge.memory, principal.tenant);
    let (body, reservation) = body::read(&settings, &memory, &parts.headers, body).await?;
    let path_model = parts.extensions.get::<PathModel>();
    let model = model(gateway, route, path_model, &parts.headers, &body)?;
    let tokens = (body.len() as u64 / BYTES_PER_TOKEN).max(1);
    let limit = if route.generates() { GENERATION_LIMIT } else { settings.time_limit };
    let deadline = started + asked.map_or(limit, |asked| asked.min(limit));
    cold::wait_for_model(gateway, &model, deadline).await?;
    let path = match path_model {
        Some(path_model) => path_model.path.clone(),
        None => parts.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/")),
    };
    let traceparent = parts.extensions.get::<Traceparent>();
    let pool_key = gateway.settings.pool_key.as_deref();
    let outgoing = Outgoing {
        method: route.method.clone(),
        path,
        headers: headers::forwarded(&parts.headers, &model, pool_key, principal.tenant, traceparent),
        body: Bytes::from(body),
        deadline,
        sends_deadline: asked.is_some() || !route.generates(),
        is_repeatable: !route.generates(),
        memory,
    };
    let request = Request { tasks: route.tasks, ..Request::new(&model, tokens) };
    let pin = gateway.pins.pin(&parts.headers, &gateway.members, &request).await;
    let pin = pin.map_err(|refusal| refusal.for_model(&model))?;
    gateway.rate_limits.charge(principal, tokens)?;
    let prefix = if route.generates() { prefix::of(&outgoing.body) } else { None };
    let outgoing = Arc::new(outgoing);
    Ok(Job { route, model, pin, tokens, prefix, outgoing, principal, _reservation: reservation })
}

/// The model of a request: of its path, its body, its header, or the only one with a task of the route.
fn model(
    gateway: &Gateway,
    route: &Route,
    path_model: Option<&PathModel>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<String, Refusal> {
    let known = gateway.members.names();
    let is_known = |name: &str| known.contains(name) || gateway.placement.find(name).is_some();
    if known.is_empty() && gateway.placement.models().is_empty() {
        return Err(Refusal::new(Kind::NotReady, "no worker of the pool has registered a model"));
    }
    let in_body = model_name::in_body(body, route.body_name)?;
    let named = match path_model {
        Some(path_model) => Some(path_model.name.clone()),
        None => in_body.or_else(|| model_name::in_header(headers)),
    };
    let Some(name) = named else { return known.only(route).map(str::to_owned) };
    if is_known(&name) {
        return Ok(name);
    }
    let is_ollama = matches!(route.body_name, BodyName::Ollama | BodyName::OllamaShow);
    if let Some(short) = name.strip_suffix(":latest")
        && is_ollama
        && is_known(short)
    {
        return Ok(short.to_owned());
    }
    let message = format!("unknown model `{name}`; available: {}", known.list());
    Err(Refusal::new(Kind::UnknownModel, message).for_model(&name))
}

/// The answer of a worker, whose body is passed on as it arrives.
fn deliver(gateway: &Arc<Gateway>, job: &Job, attempt: Attempt, account: Account) -> Response {
    let dialect = Dialect::of_path(job.route.path);
    attempt.observe_load();
    let Attempt { choice, in_flight, tracking, answer, reservation, .. } = attempt;
    let response = match answer {
        Ok(response) => response,
        Err(failure) => {
            account.end(RequestOutcome::Failed);
            let refusal = failure.refusal(choice.worker_id(), &job.model, job.outgoing.deadline);
            return refusal.respond(dialect);
        }
    };
    let (mut parts, body) = response.into_parts();
    headers::answered(&mut parts.headers, choice.worker_id());
    let content_type = parts.headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let events = Events::of(content_type, job.route.path, dialect);
    if events.is_some() {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let tokens = text("x-sconce-tokens").and_then(|tokens| tokens.parse::<usize>().ok());
    let record = RequestRecord {
        model: Some(text("x-sconce-model").unwrap_or(&job.model).to_owned()),
        tokens,
        placement: text("x-sconce-placement").map(str::to_owned),
        ..RequestRecord::default()
    };
    settle(gateway, job, parts.status.is_success(), tokens);
    if parts.status.is_success() {
        in_flight.succeeds();
    }
    let refused = (!parts.status.is_success()).then(|| {
        let code = text(CODE_HEADER.as_str()).and_then(Kind::of_code).map_or("other", Kind::code);
        Refused { code, model: Some(job.model.clone()) }
    });
    let outcome = match parts.status {
        status if status.is_success() => RequestOutcome::Ok,
        status if status.is_server_error() => RequestOutcome::Failed,
        _ => RequestOutcome::Refused,
    };
    account.answered();
    let attempts = gateway.metrics.attempts.clone();
    let dead = Box::pin(tracking.dead());
    let closing = Box::pin(gateway.edge.closing());
    // A generation may take longer than its deadline once it has begun.
    let deadline =
        if job.route.generates() { Instant::now() + GENERATION_LIMIT } else { job.outgoing.deadline };
    let worker = choice.worker_id().to_owned();
    let generated = events.as_ref().map(Events::counter);
    let (rate_limits, principal) = (Arc::clone(&gateway.rate_limits), job.principal);
    let on_end = move |end: End| {
        if let Some(generated) = generated {
            rate_limits.debit(principal, generated.load(Ordering::Relaxed));
        }
        drop((tracking, reservation));
        let (of_attempt, of_request, label) = match end {
            End::Complete => (Outcome::Success, outcome, outcome.label()),
            End::Broken => (Outcome::Failure, RequestOutcome::Failed, "failed"),
            End::Cancelled => (Outcome::Cancelled, RequestOutcome::Cancelled, "cancelled"),
        };
        attempts.with_label_values(&[worker.as_str(), label]).inc();
        in_flight.finish(of_attempt);
        account.end(of_request);
    };
    let body = AnswerBody::new(body, events, deadline, dead, closing, on_end);
    let mut response = Response::from_parts(parts, Body::new(body));
    response.extensions_mut().insert(record);
    if let Some(refused) = refused {
        response.extensions_mut().insert(refused);
    }
    response
}

/// Corrects the charge of a request by the tokens that the worker counted.
fn settle(gateway: &Gateway, job: &Job, succeeded: bool, counted: Option<usize>) {
    let tokens = if succeeded { counted.map_or(job.tokens, |tokens| tokens as u64) } else { 0 };
    if tokens > job.tokens {
        gateway.rate_limits.debit(job.principal, tokens - job.tokens);
    } else {
        gateway.rate_limits.refund(job.principal, job.tokens - tokens);
    }
}
