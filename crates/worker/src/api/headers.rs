//! Response headers: model, placement, numerics class, truncation, timing.

use std::fmt::Write as _;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use sconce::Truncation;

use crate::state::label::short;
use crate::state::work::Work;
use sconce_http::refusal::Dialect;

/// Maximum number of truncated texts that `x-sconce-truncated` lists.
const MAX_LISTED: usize = 8;

/// Writes the headers of a response. `ignored` are the unknown fields of the request.
pub(crate) fn write_headers(
    headers: &mut HeaderMap,
    work: &Work,
    ignored: &[String],
    dialect: Dialect,
    seconds: f64,
) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    if !ignored.is_empty() {
        put("x-sconce-ignored", ignored.join(", "));
    }
    if work.texts == 0 {
        return;
    }
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    put("x-sconce-model", work.model.clone());
    put("x-sconce-placement", work.placements.iter().map(short).collect::<Vec<_>>().join(", "));
    put("x-sconce-class", work.classes.join(", "));
    put("x-sconce-tokens", work.tokens.to_string());
    put("x-sconce-truncated", truncations(&work.truncated));
    if let Some(chunks) = work.chunks {
        put("x-sconce-chunks", chunks.to_string());
    }
    if !work.incidents.is_empty() {
        let incidents = work
            .incidents
            .iter()
            .map(|incident| format!("{} {}", short(&incident.placement), incident.kind.name()));
        put("x-sconce-incidents", incidents.collect::<Vec<_>>().join(", "));
    }
    let [tokenize, queue, compute] = [work.tokenizing, work.queued, work.computing].map(milliseconds);
    let total = seconds * 1e3;
    put(
        "server-timing",
        format!(
            "tokenize;dur={tokenize:.3}, queue;dur={queue:.3}, compute;dur={compute:.3}, total;dur={total:.3}"
        ),
    );
    if dialect == Dialect::Tei {
        let device = work.placements.first().map(|placement| placement.device.to_string());
        put("x-compute-type", device.unwrap_or_default());
        put("x-compute-tokens", work.tokens.to_string());
        for (name, milliseconds) in [
            ("x-compute-time", total),
            ("x-total-time", total),
            ("x-tokenization-time", tokenize),
            ("x-queue-time", queue),
            ("x-inference-time", compute),
        ] {
            put(name, format!("{milliseconds:.0}"));
        }
    }
}

/// The number of truncated texts, and the index, tokens before and tokens after of the first ones:
/// `2; 0:812>512, 3:600>512`.
fn truncations(truncated: &[Truncation]) -> String {
    let mut text = truncated.len().to_string();
    for (at, cut) in truncated.iter().take(MAX_LISTED).enumerate() {
        let comma = if at == 0 { ";" } else { "," };
        let _ = write!(text, "{comma} {}:{}>{}", cut.index, cut.tokens, cut.used);
    }
    text
}
