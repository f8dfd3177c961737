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
use crate::keys::{Denied, Principal, TenantError};
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
            // Hosts are compared without ports.
            let host = named.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
            let host = host.map_or(named.as_str(), |(host, _)| host);
            let message = format!(
                "a server without API keys does not serve the host `{named}`\n\
             hint: `sconce serve --allowed-hosts {host}`"
            );
            Refusal::new(Kind::Forbidden, message)
        },
    )
}

/// Authenticates a request by its API key, and closes connections once the server shuts down.
async fn authenticate(State(edge): State<Arc<Edge>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (public, dialect) = (edge.is_public(request.method(), path, request.headers()), edge.dialect(path));
    let host = check_host(&edge, &request);
    let known_host = host.is_ok();
    if let (false, Err(refusal)) = (public, host) {
        return refusal.respond(dialect);
    }
    let settings = edge.settings();
    let keys = &settings.keys;
    let admitted = keys.admit(request.headers());
    request.extensions_mut().insert(Trusted(admitted.is_ok() && known_host));
    let unauthorized = |message| Refusal::new(Kind::Unauthorized, message).respond(dialect);
    let mut response = match admitted {
        // Without keys all requests have one tenant.
        Ok(principal) if keys.is_empty() => admit(principal, request, next).await,
        Ok(principal) => match principal.forwarding(request.headers()) {
            Ok(principal) => admit(principal, request, next).await,
            Err(error @ TenantError::Forbidden) => {
                Refusal::new(Kind::Forbidden, error.to_string()).respond(dialect)
            }
            Err(error @ TenantError::Invalid) => {
                Refusal::new(Kind::Validation, error.to_string()).respond(dialect)
            }
        },
        Err(_) if public => next.run(request).await,
        Err(Denied::Missing) => unauthorized("this server requires an API key: `Authorization: Bearer KEY`"),
        Err(Denied::Unknown) => unauthorized("this server does not know the key that was sent"),
    };
    if edge.is_shutting_down() || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Runs the handlers for a principal, which the response names for log and metrics.
async fn admit(principal: Principal, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(principal);
    let mut response = next.run(request).await;
    response.extensions_mut().insert(principal);
    response
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use axum::{Extension, Json};
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::edge::tests::edge;
    use crate::keys::{Keys, Principal};
    use crate::settings::Settings;

    /// Answers whether the request is trusted and the rate of its principal.
    async fn answer(Extension(trusted): Extension<Trusted>, request: Request) -> Json<Value> {
        let principal = request.extensions().get::<Principal>();
        Json(json!([trusted.0, principal.map(|principal| principal.rate)]))
    }

    fn server(settings: Settings) -> (Arc<Edge>, Router) {
        let edge = Arc::new(edge(settings));
        let routes = ["/", "/embed", "/v1/embeddings", "/livez", "/docs"];
        let routes = routes.iter().fold(Router::new(), |router, path| router.route(path, get(answer)));
        let routes = routes.route("/large", get(async || StatusCode::PAYLOAD_TOO_LARGE));
        (Arc::clone(&edge), protect(routes, &edge))
    }

    fn with_keys() -> Settings {
        Settings { keys: Keys::read("one rate=5").expect("a key"), ..Settings::default() }
    }

    async fn ask(router: &Router, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        router.clone().oneshot(request).await.expect("no fault")
    }

    async fn json(response: Response) -> Value {
        let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    #[tokio::test]
    async fn a_request_needs_a_valid_key_and_is_told_what_is_wrong() {
        let (_, router) = server(with_keys());
        for (headers, message) in
            [(&[][..], "requires an API key"), (&[("x-api-key", "two")], "does not know the key")]
        {
            let refused = ask(&router, "/embed", headers).await;
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
            assert_eq!(refused.headers()["x-sconce-code"], "invalid_api_key");
            let body = json(refused).await;
            assert!(body["error"].as_str().is_some_and(|error| error.contains(message)), "{body}");
            let body = json(ask(&router, "/v1/embeddings", headers).await).await;
            assert_eq!(body["error"]["code"], "invalid_api_key", "the dialect of the path: {body}");
        }
        let response = ask(&router, "/embed", &[("x-api-key", "one"), ("host", "any.example")]).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().contains_key("traceparent"));
        let tenant = response.extensions().get::<Principal>().map(|principal| principal.rate);
        assert_eq!(tenant, Some(Some(5.0)), "the log names the key");
        assert_eq!(json(response).await, json!([true, 5.0]));
    }

    #[tokio::test]
    async fn a_public_route_needs_no_key_but_trusts_only_its_holder() {
        let (_, router) = server(with_keys());
        for path in ["/livez", "/docs"] {
            for headers in [&[][..], &[("x-api-key", "two")]] {
                let response = ask(&router, path, headers).await;
                assert_eq!(response.status(), StatusCode::OK, "{path}");
                assert_eq!(json(response).await, json!([false, null]), "{path}");
            }
            let response = ask(&router, path, &[("x-api-key", "one")]).await;
            assert_eq!(json(response).await, json!([true, 5.0]), "{path}");
        }
    }

    #[tokio::test]
    async fn a_browser_gets_a_page_without_a_key_and_other_clients_do_not() {
        let (_, router) = server(with_keys());
        let page = ask(&router, "/", &[("accept", "text/html,*/*;q=0.8")]).await;
        assert_eq!(page.status(), StatusCode::OK);
        assert_eq!(json(page).await, json!([false, null]), "it is not trusted");
        assert_eq!(ask(&router, "/", &[("accept", "*/*")]).await.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(
            ask(&router, "/embed", &[("accept", "text/html")]).await.status(),
            StatusCode::UNAUTHORIZED
        );
    }

    #[tokio::test]
    async fn without_keys_only_known_hosts_are_served() {
        let (_, router) = server(Settings::default());
        let rebound = [("host", "evil.example")];
        let refused = ask(&router, "/embed", &rebound).await;
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        let body = json(refused).await;
        let hint = "hint: `sconce serve --allowed-hosts evil.example`";
        assert!(body["error"].as_str().is_some_and(|error| error.contains(hint)), "{body}");
        let with_port = json(ask(&router, "/embed", &[("host", "evil.example:80")]).await).await;
        assert!(with_port["error"].as_str().is_some_and(|error| error.contains(hint)), "{with_port}");
        let probed = ask(&router, "/livez", &rebound).await;
        assert_eq!(probed.status(), StatusCode::OK, "an orchestrator may use any name");
        assert_eq!(json(probed).await[0], false, "paths of the machine are not shown");
        let local = ask(&router, "/embed", &[("host", "localhost:80")]).await;
        assert_eq!(json(local).await, json!([true, null]));
        let allowed_hosts = vec!["evil.example".to_owned()];
        let (_, router) = server(Settings { allowed_hosts, ..Settings::default() });
        assert_eq!(ask(&router, "/embed", &rebound).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn connections_are_closed_during_shutdown_and_after_a_body_that_is_too_large() {
        let (edge, router) = server(Settings::default());
        let closes = async |path| {
            let response = ask(&router, path, &[]).await;
            response.headers().get(header::CONNECTION).is_some_and(|value| value == "close")
        };
        assert!(!closes("/embed").await);
        assert!(closes("/large").await, "the rest of the body may still arrive");
        edge.begin_shutdown();
        assert!(closes("/embed").await);
    }

    #[tokio::test]
    async fn a_preflight_request_needs_no_key() {
        let cors_origins = vec!["https://app.example".to_owned()];
        let (_, router) = server(Settings { cors_origins, ..with_keys() });
        let preflight = Request::options("/embed")
            .header("origin", "https://app.example")
            .header("access-control-request-method", "POST");
        let preflight = preflight.body(Body::empty()).expect("a request");
        let response = router.oneshot(preflight).await.expect("no fault");
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["access-control-allow-origin"], "https://app.example");
    }
}
