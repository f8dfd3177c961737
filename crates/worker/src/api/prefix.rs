//! The prefix `/models/NAME/…`, which selects a model by path for clients that can only configure a base URL.

use std::sync::Arc;

use axum::http::Request;
use axum::http::uri::{PathAndQuery, Uri};

use crate::state::app::{App, Scope};
use crate::state::slot::Slot;

/// The path prefix.
pub(super) const PREFIX: &str = "/models/";

/// Strips `/models/NAME` from the path of a request and inserts the [`Scope`] extension.
pub(crate) fn strip<B>(app: &App, mut request: Request<B>) -> Request<B> {
    if let Some((slot, uri)) = stripped(app, request.uri()) {
        *request.uri_mut() = uri;
        request.extensions_mut().insert(Scope(slot));
    }
    request
}

fn stripped(app: &App, uri: &Uri) -> Option<(Arc<Slot>, Uri)> {
    let path = uri.path().strip_prefix(PREFIX)?;
    let slots = app.slots();
    let rests = slots.iter().flat_map(|slot| {
        let names = std::iter::once(&slot.name).chain(&slot.aliases);
        names.filter_map(move |name| Some((slot, after(path, name)?)))
    });
    // The longest matching name wins.
    let (slot, rest) = rests.min_by_key(|(_, rest)| rest.len())?;
    let rest = if rest.is_empty() { "/" } else { rest };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{rest}{query}").parse::<PathAndQuery>().ok()?);
    Some((Arc::clone(slot), Uri::from_parts(parts).ok()?))
}

/// The rest of `path` after a leading `name`, which may be percent-encoded. The name must end at a segment boundary.
fn after<'a>(path: &'a str, name: &str) -> Option<&'a str> {
    let mut at = 0;
    for expected in name.bytes() {
        let (byte, length) = match *path.as_bytes().get(at)? {
            b'%' => (u8::from_str_radix(path.get(at + 1..at + 3)?, 16).ok()?, 3),
            byte => (byte, 1),
        };
        if byte != expected {
            return None;
        }
        at += length;
    }
    path.get(at..).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_a_segment_boundary_and_may_be_percent_encoded() {
        assert_eq!(after("small/embed", "small"), Some("/embed"));
        assert_eq!(after("small", "small"), Some(""));
        assert_eq!(after("org/name/v1/embeddings", "org/name"), Some("/v1/embeddings"));
        assert_eq!(after("org%2Fname/v1/embeddings", "org/name"), Some("/v1/embeddings"));
        assert_eq!(after("a%20b/embed", "a b"), Some("/embed"));
        assert_eq!(after("caf%C3%A9/embed", "café"), Some("/embed"));
        for (path, name) in
            [("smaller/embed", "small"), ("smal", "small"), ("%", "%"), ("a%2", "a/"), ("a%zz", "a/")]
        {
            assert_eq!(after(path, name), None, "{path} {name}");
        }
    }
}
