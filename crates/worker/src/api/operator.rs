//! Routes of operators: drain, pause, resume. If operator keys are configured, only they are allowed.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sconce_http::operator;
use sconce_http::refusal::{Dialect, Refusal};
use serde_json::json;

use crate::models::readiness::worker_state;
use crate::state::app::App;

/// Begins graceful shutdown, as SIGTERM does.
///
/// The server is not ready at once, and requests in flight are finished. If operator keys are configured, only they are
/// allowed.
#[utoipa::path(post, path = "/v1/drain", tag = "operation", responses((status = 202), (status = 403)))]
pub(crate) async fn drain(State(app): State<Arc<App>>, request: Request) -> Response {
    if let Err(refusal) = authorize(&app, &request, "drain") {
        return refusal.respond(Dialect::OpenAi);
    }
    app.drain();
    (StatusCode::ACCEPTED, Json(json!({ "draining": true }))).into_response()
}

/// Refuses new requests until the worker is resumed.
///
/// They get 503 with the code `paused`. Requests in flight are finished; `requests` counts them. Models stay loaded. If
/// operator keys are configured, only they are allowed.
#[utoipa::path(post, path = "/v1/pause", tag = "operation", responses((status = 200, body = Object), (status = 403)))]
pub(crate) async fn pause(State(app): State<Arc<App>>, request: Request) -> Response {
    set_paused(&app, &request, "pause", true)
}

/// Accepts requests again.
///
/// If operator keys are configured, only they are allowed.
#[utoipa::path(post, path = "/v1/resume", tag = "operation", responses((status = 200, body = Object), (status = 403)))]
pub(crate) async fn resume(State(app): State<Arc<App>>, request: Request) -> Response {
    set_paused(&app, &request, "resume", false)
}

fn set_paused(app: &App, request: &Request, action: &str, paused: bool) -> Response {
    if let Err(refusal) = authorize(app, request, action) {
        return refusal.respond(Dialect::OpenAi);
    }
    app.set_paused(paused);
    Json(json!({ "state": worker_state(app), "requests": app.requests.count() })).into_response()
}

/// Rejects requests that may not operate the worker; `action` ends with a verb or a preposition.
pub(super) fn authorize(app: &App, request: &Request, action: &str) -> Result<(), Refusal> {
    operator::authorize(&app.settings().http.keys, request, &format!("{action} this worker"))
}
