//! The routes, who may take them, and their description.

mod cohere;
mod cors;
mod docs;
mod meta;
mod openai;
mod openapi;
mod prefix;
mod rerank;
mod tei;
mod text;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};

use crate::app::App;
use crate::hosts;
use crate::keys::Denied;
use crate::refusal::{Dialect, Kind, Refusal};
use crate::telemetry::watch;
pub(crate) use meta::{report_of, waits_for};
pub(crate) use prefix::strip;

/// Routes that need no key: an orchestrator has none.
pub(crate) const OPEN: [&str; 4] = ["/livez", "/readyz", "/startupz", "/health"];

/// Every path and what answers there.
pub(crate) fn routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/", post(tei::root).get(meta::info)),
        ("/embed", post(tei::embed)),
        ("/embed_all", post(tei::embed_all)),
        ("/embed_sparse", post(tei::embed_sparse)),
        ("/rerank", post(tei::rerank)),
        ("/predict", post(tei::predict)),
        ("/similarity", post(tei::similarity)),
        ("/tokenize", post(text::tokenize)),
        ("/decode", post(text::decode)),
        ("/info", get(meta::info)),
        ("/health", get(meta::health)),
        ("/v1/embeddings", post(openai::embeddings)),
        ("/embeddings", post(openai::embeddings_short)),
        ("/v1/models", get(openai::models)),
        ("/v1/models/{*id}", get(openai::model)),
        ("/v1/rerank", post(rerank::first)),
        ("/v2/rerank", post(rerank::second)),
        ("/v2/embed", post(cohere::embed)),
        ("/v1/report", get(meta::report)),
        ("/v1/drain", post(meta::drain)),
        ("/metrics", get(meta::metrics)),
        ("/livez", get(meta::livez)),
        ("/readyz", get(meta::readyz)),
        ("/startupz", get(meta::startupz)),
        ("/openapi.json", get(openapi::serve)),
        ("/docs", get(docs::page)),
    ]
}

/// The routes, and what stands around all of them.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let add = |router: Router<Arc<App>>, (path, answers)| router.route(path, answers);
    let router = routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(app), authenticate))
        .layer(middleware::from_fn_with_state(Arc::clone(app), watch))
        .with_state(Arc::clone(app));
    match cors::layer(&app.settings().cors_origins) {
        None => router,
        // Outermost: what browsers ask beforehand comes without a key.
        Some(cors) => router.layer(cors),
    }
}

/// How errors look to whoever takes this route.
fn dialect(path: &str) -> Dialect {
    match path {
        "/v1/rerank" | "/v2/rerank" | "/v2/embed" => Dialect::Rerank,
        "/embeddings" => Dialect::OpenAi,
        path if path.starts_with("/v1/") => Dialect::OpenAi,
        _ => Dialect::Tei,
    }
}

async fn no_such_route(State(app): State<Arc<App>>, request: Request) -> Response {
    if request.uri().path().starts_with(prefix::PREFIX) {
        let message = "no model of this name is served; `/v1/models` lists those that there are";
        return refuse(&app, Kind::UnknownModel, message, &request);
    }
    refuse(&app, Kind::NoRoute, "no such route; `/openapi.json` lists those that there are", &request)
}

async fn method_not_allowed(State(app): State<Arc<App>>, request: Request) -> Response {
    refuse(&app, Kind::Method, "this route takes another method", &request)
}

fn refuse(app: &App, kind: Kind, message: &str, request: &Request) -> Response {
    let refusal = Refusal::new(kind, message);
    app.metrics.refused(refusal.code());
    refusal.respond(dialect(request.uri().path()))
}

/// Whether a request may see paths and errors of this machine: it has a key, or needs none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trusted(pub(crate) bool);

/// Where there are no keys, refuses requests that name a host of somebody else.
fn check_host(app: &App, request: &Request) -> Result<(), Refusal> {
    let settings = app.settings();
    if !settings.keys.is_empty() {
        return Ok(());
    }
    let advertised = settings.worker.url.as_ref().and_then(|url| url.parse::<Uri>().ok());
    let advertised = advertised.as_ref().and_then(Uri::host).map(str::to_owned);
    let allowed: Vec<String> = settings.allowed_hosts.iter().cloned().chain(advertised).collect();
    hosts::check(app.bound.ip(), &allowed, request.uri(), request.headers()).map_err(|named| {
        let message = format!(
            "a server without API keys does not serve the host `{named}`\n\
             hint: `sconce serve --allowed-hosts {named}`"
        );
        Refusal::new(Kind::Forbidden, message)
    })
}

/// Lets in whoever has a key, and asks clients to go once the server is stopping.
async fn authenticate(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open = OPEN.contains(&path) || path == "/docs";
    let hosted = check_host(&app, &request);
    if !open && let Err(refusal) = hosted {
        app.metrics.refused(refusal.code());
        return refusal.respond(dialect(path));
    }
    let admitted = app.settings().keys.admit(request.headers());
    request.extensions_mut().insert(Trusted(admitted.is_ok() && hosted.is_ok()));
    let mut response = match admitted {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            let mut response = next.run(request).await;
            response.extensions_mut().insert(principal);
            response
        }
        Err(_) if open => next.run(request).await,
        Err(Denied::Missing) => {
            let message = "this server wants a key: `Authorization: Bearer KEY`";
            refuse(&app, Kind::Unauthorized, message, &request)
        }
        Err(Denied::Unknown) => {
            let message = "this server does not know the key that was sent";
            refuse(&app, Kind::Unauthorized, message, &request)
        }
    };
    if app.is_stopping() || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
