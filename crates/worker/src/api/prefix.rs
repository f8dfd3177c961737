//! The prefix `/models/NAME/…`, which selects a model by path for clients that can only configure a base URL.

use std::sync::Arc;

use axum::http::Request;
use axum::http::uri::{PathAndQuery, Uri};
use sconce_http::path_name::after;

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
