//! The routes of a gateway.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::http::uri::{PathAndQuery, Uri};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use sconce_http::refusal::{Dialect, Kind, Refusal, Refused};
use sconce_http::{RouteRules, protect};

use super::proxy::{PathModel, forward};
use super::routes::ROUTES;
use super::state::Gateway;
use super::{desired, model_name, ollama, pages};

/// What the HTTP edge must know about these routes.
pub(super) const RULES: RouteRules = RouteRules {
    probes: &["/livez", "/readyz", "/health"],
    public: &[],
    pages: &[],
    dialect: Dialect::of_path,
};

/// The routes with the middleware around them.
pub(super) fn router(gateway: &Arc<Gateway>) -> Router {
    let own = Router::new()
        .route("/livez", get(pages::livez))
        .route("/readyz", get(pages::readyz))
        .route("/health", get(pages::readyz))
        .route("/metrics", get(pages::metrics))
        .route("/v1/models", get(pages::models).post(desired::load))
        .route("/v1/models/{*id}", get(pages::model).delete(desired::unload))
        .route("/v1/report", get(pages::report))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/version", get(ollama::version));
    let routes = ROUTES
        .iter()
        .fold(own, |router, route| {
            let forward = if route.method == Method::GET { get(forward) } else { post(forward) };
            router.route(route.path, forward)
        })
        .fallback(no_such_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(Arc::clone(gateway));
    let counted = middleware::from_fn_with_state(Arc::clone(gateway), count_refusals);
    protect(routes, &gateway.edge).layer(counted)
}

/// Removes `/models/NAME` from the path of a request and inserts the extension [`PathModel`].
pub(super) fn strip<B>(gateway: &Gateway, mut request: axum::http::Request<B>) -> axum::http::Request<B> {
    if let Some((uri, model)) = stripped(gateway, request.uri()) {
        *request.uri_mut() = uri;
        request.extensions_mut().insert(model);
    }
    request
}

fn stripped(gateway: &Gateway, uri: &Uri) -> Option<(Uri, PathModel)> {
    if !uri.path().starts_with(model_name::PREFIX) {
        return None;
    }
    let (names, desired) = (gateway.members.names(), gateway.placement.models());
    let desired = desired.values().flat_map(|one| [one.model.as_str(), one.source.as_str()]);
    let (name, rest) = model_name::in_path(uri.path(), names.all().chain(desired))?;
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    let path = parts.path_and_query.replace(format!("{rest}{query}").parse::<PathAndQuery>().ok()?)?;
    Some((Uri::from_parts(parts).ok()?, PathModel { path, name: name.to_owned() }))
}

async fn no_such_route(request: Request) -> Response {
    let path = request.uri().path();
    let refusal = if path.starts_with(model_name::PREFIX) {
        Refusal::new(Kind::UnknownModel, "unknown model in the path; `/v1/models` lists the models")
    } else {
        Refusal::new(Kind::NoRoute, "unknown route of the gateway")
    };
    refusal.respond(Dialect::of_path(path))
}

async fn method_not_allowed(request: Request) -> Response {
    Refusal::new(Kind::Method, "method not allowed on this route")
        .respond(Dialect::of_path(request.uri().path()))
}

/// Counts refusals by code.
async fn count_refusals(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if let Some(refused) = response.extensions().get::<Refused>() {
        gateway.metrics.refusals.with_label_values(&[refused.code]).inc();
    }
    response
}
