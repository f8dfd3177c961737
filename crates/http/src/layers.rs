//! The middleware around all routes: CORS, telemetry, host check, authentication.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;

use crate::cors;
use crate::edge::Edge;
use crate::hosts;
use crate::keys::Denied;
use crate::refusal::{Kind, Refusal};
use crate::telemetry;

/// Whether a request may see paths and errors of this machine: it is authorized, or no key is required.
#[derive(Clone, Copy, Debug)]
pub struct Trusted(pub bool);

/// Puts the middleware around `routes`. Handlers find the [`Principal`](crate::Principal) and [`Trusted`] among the
/// request's extensions.
pub fn protect(routes: Router, edge: &Arc<Edge>) -> Router {
    let protected = routes
        .layer(middleware::from_fn_with_state(Arc::clone(edge), authenticate))
        .layer(middleware::from_fn_with_state(Arc::clone(edge), trace));
    match cors::layer(&edge.settings().cors_origins) {
        None => protected,
        // Outermost: preflight requests carry no key.
        Some(cors) => protected.layer(cors),
    }
}

/// Records the request in the log and in traces.
async fn trace(State(edge): State<Arc<Edge>>, request: Request, next: Next) -> Response {
    let keys = edge.settings();
    telemetry::record(&edge.telemetry, &keys.keys, |path| edge.is_probe(path), request, next).await
}

/// Rejects requests for another host where there are no keys, so that DNS rebinding finds nothing.
fn check_host(edge: &Edge, request: &Request) -> Result<(), Refusal> {
    let settings = edge.settings();
    if !settings.keys.is_empty() {
        return Ok(());
    }
    hosts::check(edge.bound.ip(), &settings.allowed_hosts, request.uri(), request.headers()).map_err(
        |named| {
            let message = format!(
                "a server without API keys does not serve the host `{named}`\n\
             hint: `sconce serve --allowed-hosts {named}`"
            );
            Refusal::new(Kind::Forbidden, message)
        },
    )
}

/// Authenticates a request by its API key, and closes connections once the server shuts down.
async fn authenticate(State(edge): State<Arc<Edge>>, mut request: Request, next: Next) -> Response {
    let (public, dialect) = (edge.is_public(request.uri().path()), edge.dialect(request.uri().path()));
    let host = check_host(&edge, &request);
    let known_host = host.is_ok();
    if let (false, Err(refusal)) = (public, host) {
        return refusal.respond(dialect);
    }
    let admitted = edge.settings().keys.admit(request.headers());
    request.extensions_mut().insert(Trusted(admitted.is_ok() && known_host));
    let unauthorized = |message| Refusal::new(Kind::Unauthorized, message).respond(dialect);
    let mut response = match admitted {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            let mut response = next.run(request).await;
            response.extensions_mut().insert(principal);
            response
        }
        Err(_) if public => next.run(request).await,
        Err(Denied::Missing) => unauthorized("this server requires an API key: `Authorization: Bearer KEY`"),
        Err(Denied::Unknown) => unauthorized("this server does not know the key that was sent"),
    };
    if edge.is_shutting_down() || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
