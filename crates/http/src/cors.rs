//! Cross-origin resource sharing.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Response headers that scripts may read.
const EXPOSED: [&str; 11] = [
    "x-sconce-model",
    "x-sconce-placement",
    "x-sconce-class",
    "x-sconce-tokens",
    "x-sconce-truncated",
    "x-sconce-chunks",
    "x-sconce-ignored",
    "x-sconce-code",
    "x-sconce-load",
    "server-timing",
    "retry-after",
];

/// Allows requests from these origins; `*` allows all. The requested headers are mirrored, because a wildcard does not
/// cover `Authorization`.
pub(crate) fn layer(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse::<HeaderValue>().ok()))
    };
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .max_age(std::time::Duration::from_hours(1));
    Some(layer)
}
