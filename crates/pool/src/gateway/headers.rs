//! Headers between client, gateway and worker.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use sconce_http::deadline::DEADLINE_HEADER;
use sconce_http::keys::{TENANT_HEADER, TenantId};
use sconce_http::telemetry::Traceparent;

/// Response header: the worker that answered.
pub const WORKER_HEADER: HeaderName = HeaderName::from_static("x-sconce-worker");
/// Header of a numerics class: in a request the one that must answer, in a response the one that answered.
pub const CLASS_HEADER: HeaderName = HeaderName::from_static("x-sconce-class");
/// Request header: the index whose numerics class must answer.
pub const INDEX_HEADER: HeaderName = HeaderName::from_static("x-sconce-index");
/// Header of a model's name.
pub(super) const MODEL_HEADER: HeaderName = HeaderName::from_static("x-sconce-model");

/// Headers of one connection, and those that a gateway replaces.
const NOT_FORWARDED: [HeaderName; 10] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HOST,
    header::EXPECT,
];

/// Request headers that only the gateway may set.
const REPLACED: [HeaderName; 7] = [
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    header::CONTENT_LENGTH,
    header::COOKIE,
    HeaderName::from_static("traceparent"),
    DEADLINE_HEADER,
    TENANT_HEADER,
];

/// The headers of a request to a worker, without the deadline.
pub(super) fn forwarded(
    headers: &HeaderMap,
    model: &str,
    pool_key: Option<&str>,
    tenant: TenantId,
    traceparent: Option<&Traceparent>,
) -> HeaderMap {
    let mut forwarded = HeaderMap::with_capacity(headers.len() + 4);
    for (name, value) in headers {
        if !is_hop_by_hop(headers, name) && !REPLACED.contains(name) {
            forwarded.append(name, value.clone());
        }
    }
    // A body or path that names a model takes precedence at the worker too.
    if !forwarded.contains_key(MODEL_HEADER)
        && let Ok(value) = HeaderValue::from_str(model)
    {
        forwarded.insert(MODEL_HEADER, value);
    }
    if let Some(key) = pool_key
        && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {key}"))
    {
        value.set_sensitive(true);
        forwarded.insert(header::AUTHORIZATION, value);
        if let Ok(value) = HeaderValue::from_str(&format!("{:016x}", tenant.0)) {
            forwarded.insert(TENANT_HEADER, value);
        }
    }
    if let Some(Traceparent(value)) = traceparent {
        forwarded.insert("traceparent", value.clone());
    }
    forwarded
}

/// Removes the headers of one connection from an answer, and names the worker.
pub(super) fn answered(headers: &mut HeaderMap, worker: &str) {
    let hops: Vec<HeaderName> = headers.keys().filter(|name| is_hop_by_hop(headers, name)).cloned().collect();
    for name in hops {
        headers.remove(name);
    }
    if let Ok(value) = HeaderValue::from_str(worker) {
        headers.insert(WORKER_HEADER, value);
    }
}

fn is_hop_by_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    let named = || {
        let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(name.as_str()))
    };
    NOT_FORWARDED.contains(name) || named()
}

/// A whole number of seconds in `Retry-After`.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<f64> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// Requests in flight and tokens of the load that a worker reports.
pub(super) fn load(headers: &HeaderMap) -> Option<(u32, u64)> {
    let text = headers.get("x-sconce-load")?.to_str().ok()?;
    let field = |name: &str| {
        let mut fields = text.split(',').filter_map(|field| field.trim().split_once('='));
        fields.find(|(known, _)| *known == name).map(|(_, value)| value)
    };
    Some((field("requests")?.parse().ok()?, field("tokens")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().expect("a value"));
        }
        headers
    }

    #[test]
    fn credentials_of_clients_stay_and_the_tenant_needs_the_key_of_the_pool() {
        let client = map(&[
            ("authorization", "Bearer theirs"),
            ("x-api-key", "theirs"),
            ("x-sconce-tenant", "0000000000000001"),
            ("x-sconce-priority", "bulk"),
            ("host", "gateway"),
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("content-length", "5"),
        ]);
        let plain = forwarded(&client, "m", None, TenantId(7), None);
        assert_eq!(plain, map(&[("x-sconce-priority", "bulk"), ("x-sconce-model", "m")]));
        let keyed = forwarded(&client, "m", Some("ours"), TenantId(7), None);
        assert_eq!(keyed[header::AUTHORIZATION], "Bearer ours");
        assert_eq!(keyed[TENANT_HEADER], "0000000000000007");
        let named = map(&[("x-sconce-model", "n")]);
        assert_eq!(forwarded(&named, "m", None, TenantId(7), None), named);
    }

    #[test]
    fn the_load_of_a_worker_has_requests_and_tokens() {
        assert_eq!(load(&map(&[("x-sconce-load", "requests=3, tokens=1200")])), Some((3, 1200)));
        assert_eq!(load(&map(&[("x-sconce-load", "tokens=1,later=2,requests=0")])), Some((0, 1)));
        for wrong in ["", "requests=3", "requests=a, tokens=1"] {
            assert_eq!(load(&map(&[("x-sconce-load", wrong)])), None, "{wrong}");
        }
    }

    #[test]
    fn an_answer_names_its_worker() {
        let mut headers = map(&[("connection", "keep-alive"), ("x-sconce-class", "aa-half")]);
        answered(&mut headers, "seven");
        assert_eq!(headers, map(&[("x-sconce-class", "aa-half"), ("x-sconce-worker", "seven")]));
    }
}
