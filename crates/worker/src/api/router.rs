//! The routes of a worker.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use sconce_http::refusal::{Dialect, Kind, Refusal, Refused};
use sconce_http::{Principal, RouteRules, protect};

use crate::api::{
    anthropic, catalog, chat, cohere, completions, console, llama_cpp, meta, ollama, openai, openapi,
    operator, prefix, rerank, responses, tei, text,
};
use crate::models::catalog::Catalog;
use crate::models::load::{header_value, load_of};
use crate::state::app::App;

/// The header with the load of the worker.
const LOAD_HEADER: HeaderName = HeaderName::from_static("x-sconce-load");

/// What the HTTP edge must know about these routes.
pub(crate) const RULES: RouteRules = RouteRules {
    probes: &["/livez", "/readyz", "/startupz", "/health"],
    public: &["/docs"],
    pages: &["/"],
    dialect: Dialect::of_path,
};

/// All paths with their handlers.
pub(crate) fn routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/", post(tei::root).get(console::root)),
        ("/embed", post(tei::embed)),
        ("/embed_all", post(tei::embed_all)),
        ("/embed_sparse", post(tei::embed_sparse)),
        ("/rerank", post(tei::rerank)),
        ("/predict", post(tei::predict)),
        ("/similarity", post(tei::similarity)),
        ("/apply-template", post(llama_cpp::apply_template)),
        ("/tokenize", post(text::tokenize)),
        ("/decode", post(text::decode)),
        ("/info", get(meta::info)),
        ("/health", get(meta::health)),
        ("/v1/embeddings", post(openai::embeddings)),
        ("/embeddings", post(openai::embeddings_short)),
        ("/v1/models", get(openai::models).post(catalog::load)),
        ("/v1/models/{*id}", get(openai::model).delete(catalog::unload)),
        ("/v1/chat/completions", post(chat::completions)),
        ("/v1/completions", post(completions::completions)),
        ("/v1/responses", post(responses::responses)),
        ("/v1/messages", post(anthropic::messages)),
        ("/v1/messages/count_tokens", post(anthropic::count_tokens)),
        ("/api/chat", post(ollama::generate::chat)),
        ("/api/generate", post(ollama::generate::generate)),
        ("/api/embed", post(ollama::embed::embed)),
        ("/api/embeddings", post(ollama::embed::embeddings)),
        ("/api/tags", get(ollama::models::tags)),
        ("/api/show", post(ollama::models::show)),
        ("/api/ps", get(ollama::models::ps)),
        ("/api/version", get(ollama::models::version)),
        ("/v1/rerank", post(rerank::first)),
        ("/v2/rerank", post(rerank::second)),
        ("/v2/embed", post(cohere::embed)),
        ("/v1/report", get(meta::report)),
        ("/v1/drain", post(operator::drain)),
        ("/v1/fit", post(catalog::fit)),
        ("/v1/pause", post(operator::pause)),
        ("/v1/resume", post(operator::resume)),
        ("/metrics", get(meta::metrics)),
        ("/livez", get(meta::livez)),
        ("/readyz", get(meta::readyz)),
        ("/startupz", get(meta::startupz)),
        ("/openapi.json", get(openapi::serve)),
        ("/docs", get(console::page)),
    ]
}

/// The routes with the middleware around them.
pub(crate) fn router(app: &Arc<App>, catalog: Option<Arc<Catalog>>) -> Router {
    let add = |router: Router<Arc<App>>, (path, handlers)| router.route(path, handlers);
    let routes = routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Arc::clone(app));
    let routes = match catalog {
        Some(catalog) => routes.layer(Extension(catalog)),
        None => routes,
    };
    let observed = middleware::from_fn_with_state(Arc::clone(app), observe);
    protect(routes, &app.edge).layer(observed)
}

async fn no_such_route(request: Request) -> Response {
    let path = request.uri().path();
    let refusal = if path.starts_with(prefix::PREFIX) {
        let message = "unknown model in the path; `/v1/models` lists the models";
        Refusal::new(Kind::UnknownModel, message)
    } else {
        Refusal::new(Kind::NoRoute, "unknown route; `/openapi.json` lists the routes")
    };
    refusal.respond(Dialect::of_path(path))
}

async fn method_not_allowed(request: Request) -> Response {
    Refusal::new(Kind::Method, "method not allowed on this route")
        .respond(Dialect::of_path(request.uri().path()))
}

/// Counts refusals by code, and adds the load of the worker to answers to authorized requests.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(refused) = response.extensions().get::<Refused>() {
        app.metrics.refused(refused.code);
    }
    if response.extensions().get::<Principal>().is_some()
        && let Ok(load) = HeaderValue::from_str(&header_value(&load_of(&app)))
    {
        response.headers_mut().insert(LOAD_HEADER, load);
    }
    response
}
