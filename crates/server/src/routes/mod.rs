//! The routes, who may take them, and their description.

mod cohere;
mod cors;
mod docs;
mod meta;
mod openai;
mod openapi;
mod rerank;
mod tei;
mod text;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};

use crate::app::App;
use crate::keys::Guest;
use crate::refusal::{Dialect, Kind, Refusal};
use crate::seeing::watch;
pub(crate) use meta::report_of;

/// Routes that need no key: an orchestrator has none.
pub(crate) const OPEN: [&str; 4] = ["/livez", "/readyz", "/startupz", "/health"];

/// All routes.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let router = Router::new()
        .route("/", post(tei::root).get(meta::info))
        .route("/embed", post(tei::embed))
        .route("/embed_all", post(tei::embed_all))
        .route("/embed_sparse", post(tei::embed_sparse))
        .route("/rerank", post(tei::rerank))
        .route("/predict", post(tei::predict))
        .route("/similarity", post(tei::similarity))
        .route("/tokenize", post(text::tokenize))
        .route("/decode", post(text::decode))
        .route("/info", get(meta::info))
        .route("/health", get(meta::health))
        .route("/v1/embeddings", post(openai::embeddings))
        .route("/embeddings", post(openai::embeddings))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{*id}", get(openai::model))
        .route("/v1/rerank", post(rerank::first))
        .route("/v2/rerank", post(rerank::second))
        .route("/v2/embed", post(cohere::embed))
        .route("/v1/report", get(meta::report))
        .route("/v1/drain", post(meta::drain))
        .route("/metrics", get(meta::metrics))
        .route("/livez", get(meta::livez))
        .route("/readyz", get(meta::readyz))
        .route("/startupz", get(meta::startupz))
        .route("/openapi.json", get(openapi::serve))
        .route("/docs", get(docs::page))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(middleware::from_fn_with_state(Arc::clone(app), keep_the_door))
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

async fn nowhere(State(app): State<Arc<App>>, request: Request) -> Response {
    refuse(&app, Kind::NoRoute, "no such route; `/openapi.json` lists those that there are", &request)
}

async fn not_so(State(app): State<Arc<App>>, request: Request) -> Response {
    refuse(&app, Kind::Method, "this route takes another method", &request)
}

fn refuse(app: &App, kind: Kind, message: &str, request: &Request) -> Response {
    let refusal = Refusal::new(kind, message);
    app.metrics.refused(refusal.code());
    refusal.respond(dialect(request.uri().path()))
}

/// Lets in whoever has a key, and asks clients to go once the server is stopping.
async fn keep_the_door(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let open = OPEN.contains(&path) || path == "/docs";
    let guest = app.settings().keys.admit(request.headers()).or(open.then(Guest::default));
    let mut response = if let Some(guest) = guest {
        request.extensions_mut().insert(guest);
        next.run(request).await
    } else {
        let message = "this server wants a key: `Authorization: Bearer KEY`";
        refuse(&app, Kind::Unauthorized, message, &request)
    };
    if app.is_stopping() || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
