//! The console: one page for browsers at `/`, and at `/docs` for the API. `console/` has its source.

use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_http::wants_page;
use sha2::{Digest, Sha256};

use crate::api::meta;
use crate::state::app::App;

/// Built by `npm run build` in `console/`; `scripts/check-console` compares it with its source.
const PAGE: &str = include_str!("console.html");

/// Content security policy: only the script and the style of the page apply, the script connects to this server only, and
/// no text becomes HTML.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |open: &str, close: &str| {
        let inside = PAGE
            .split_once(open)
            .and_then(|(_, rest)| rest.split_once(close))
            .map_or("", |(inside, _)| inside);
        STANDARD.encode(Sha256::digest(inside))
    };
    format!(
        "default-src 'none'; connect-src 'self'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        hash("<script type=\"module\">", "</script>"),
        hash("<style>", "</style>")
    )
});

/// The console for browsers, and TEI's model info for other clients.
pub(crate) async fn root(app: State<Arc<App>>, request: Request) -> Response {
    let mut response = if wants_page(request.method(), request.headers()) {
        page().await
    } else {
        meta::info(app, request).await
    };
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

/// The console at its page of the API: all routes, with a form to try each.
///
/// It contains no protected data: it sends requests with the key that the user enters.
#[utoipa::path(get, path = "/docs", tag = "operation", responses((status = 200)))]
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(PAGE)).into_response()
}
