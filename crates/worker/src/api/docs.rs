//! `/docs`: an interactive page for all routes, embedded in the binary.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("docs.html");

/// Content security policy: only the script and style of the page run, and they connect to this server only.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |open: &str, close: &str| {
        let inside = PAGE
            .split_once(open)
            .and_then(|(_, rest)| rest.split_once(close))
            .map_or("", |(inside, _)| inside);
        STANDARD.encode(Sha256::digest(inside))
    };
    format!(
        "default-src 'none'; connect-src 'self'; script-src 'sha256-{}'; style-src 'sha256-{}'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("<script>", "</script>"),
        hash("<style>", "</style>")
    )
});

/// An interactive page for all routes.
///
/// It contains no protected data: it sends requests with the key that the user enters.
#[utoipa::path(get, path = "/docs", tag = "operation", responses((status = 200)))]
pub(crate) async fn page() -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(PAGE)).into_response()
}
