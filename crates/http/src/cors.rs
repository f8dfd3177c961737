//! Which pages' scripts may ask.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Headers of answers that scripts may read.
const SHOWN: [&str; 10] = [
    "x-sconce-model",
    "x-sconce-placement",
    "x-sconce-class",
    "x-sconce-tokens",
    "x-sconce-truncated",
    "x-sconce-chunks",
    "x-sconce-ignored",
    "x-sconce-code",
    "server-timing",
    "retry-after",
];

/// Lets scripts of pages from these origins ask; `*` is all of them. Every header that they ask for is allowed by its
/// name, since `*` would leave out `Authorization`.
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
        .expose_headers(SHOWN.map(HeaderName::from_static))
        .max_age(std::time::Duration::from_hours(1));
    Some(layer)
}
