//! Ollama's lists of the models of the pool. The registry has no sizes and digests of weights, so they are empty.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::pages::{ModelObject, models_of};
use super::state::Gateway;

/// Lists the models.
pub(super) async fn tags(State(gateway): State<Arc<Gateway>>) -> Response {
    list(&gateway, |_| true)
}

/// Lists the loaded models.
pub(super) async fn ps(State(gateway): State<Arc<Gateway>>) -> Response {
    list(&gateway, |model| model.ready)
}

/// The version of the gateway.
pub(super) async fn version() -> Response {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") })).into_response()
}

fn list(gateway: &Gateway, is_listed: impl Fn(&ModelObject) -> bool) -> Response {
    let models: Vec<Value> =
        models_of(gateway).values().filter(|model| is_listed(model)).map(entry).collect();
    Json(json!({ "models": models })).into_response()
}

fn entry(model: &ModelObject) -> Value {
    json!({
        "name": model.id,
        "model": model.id,
        "modified_at": "1970-01-01T00:00:00Z",
        "size": 0,
        "size_vram": 0,
        "digest": "",
        "details": { "families": [], "family": "", "format": "", "parent_model": "" },
        "context_length": model.max_length,
    })
}
