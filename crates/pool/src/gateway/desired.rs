//! Routes of operators that change the desired state of the pool: load and unload a model.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sconce_http::keys::Principal;
use sconce_http::memory_budget::RequestMemory;
use sconce_http::refusal::{Dialect, Kind, Refusal};
use sconce_http::{body, operator};
use sconce_registry::{DesiredModel, RegistryError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::state::Gateway;
use crate::class::{InvalidClass, NumericsClass};

/// The body of a load.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadBody {
    /// Where the files of the model come from, as workers know it.
    source: String,
    /// Its name in requests; by default the source.
    name: Option<String>,
    /// Minimum number of replicas.
    min_replicas: Option<u32>,
    /// Maximum number of replicas.
    max_replicas: Option<u32>,
    /// The numerics class that replicas must have.
    class: Option<String>,
}

impl LoadBody {
    fn desired(self) -> Result<DesiredModel, Refusal> {
        if let Some(class) = &self.class {
            let parsed: Result<NumericsClass, InvalidClass> = class.parse();
            parsed.map_err(|error| Refusal::new(Kind::Validation, error.to_string()))?;
        }
        let min_replicas = self.min_replicas.unwrap_or(1);
        Ok(DesiredModel {
            model: self.name.unwrap_or_else(|| self.source.clone()),
            source: self.source,
            min_replicas,
            max_replicas: self.max_replicas.unwrap_or(min_replicas.max(1)),
            class: self.class,
        })
    }
}

/// Adds a model to the desired state, or replaces it. Workers load it in the background.
pub(super) async fn load(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let set = async {
        let desired = read(&gateway, request).await?.desired()?;
        gateway.backend.set_desired(desired.clone()).await.map_err(|error| refusal(&error))?;
        Ok(desired)
    };
    let set: Result<DesiredModel, Refusal> = set.await;
    match set {
        Ok(desired) => (StatusCode::ACCEPTED, Json(json!(desired))).into_response(),
        Err(refusal) => refusal.respond(Dialect::OpenAi),
    }
}

/// Removes a model from the desired state, by its name or source. Workers that the pool loaded it on unload it.
pub(super) async fn unload(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    if let Err(refusal) = authorize(&gateway, &request, "unload models of this pool") {
        return refusal.respond(Dialect::OpenAi);
    }
    let removed = async {
        let model = gateway.placement.find(&id).map_or_else(|| id.clone(), |desired| desired.model.clone());
        let removed = gateway.backend.remove_desired(&model).await.map_err(|error| refusal(&error))?;
        if !removed {
            let known: Vec<String> =
                gateway.placement.models().keys().take(20).map(|model| format!("`{model}`")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("the pool was not told to load `{id}`; it was told to load: {known}");
            return Err(Refusal::new(Kind::UnknownModel, message).for_model(&id));
        }
        Ok(json!({ "id": model, "object": "model", "deleted": true }))
    };
    let removed: Result<Value, Refusal> = removed.await;
    match removed {
        Ok(body) => Json(body).into_response(),
        Err(refusal) => refusal.respond(Dialect::OpenAi),
    }
}

fn authorize(gateway: &Gateway, request: &Request, action: &str) -> Result<(), Refusal> {
    operator::authorize(&gateway.edge.settings().keys, request, action)
}

/// Authorizes a request and reads its body.
async fn read(gateway: &Gateway, request: Request) -> Result<LoadBody, Refusal> {
    let authorized = authorize(gateway, &request, "load models on this pool");
    let (parts, body) = request.into_parts();
    if let Err(refusal) = authorized {
        return Err(if body::drain(&parts.headers, body).await { refusal } else { refusal.closing() });
    }
    let principal = parts.extensions.get::<Principal>().copied().unwrap_or_default();
    let memory = RequestMemory::new(&gateway.edge.memory, principal.tenant);
    let (bytes, _reservation) = body::read(&gateway.edge.settings(), &memory, &parts.headers, body).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let kind = if error.is_data() { Kind::Validation } else { Kind::Syntax };
        Refusal::new(kind, format!("the body is not valid: {error}"))
    })
}

fn refusal(error: &RegistryError) -> Refusal {
    if let RegistryError::Record(error) = error {
        return Refusal::new(Kind::Validation, error.to_string());
    }
    Refusal::new(Kind::NotReady, format!("the desired state can't be changed now: {error}"))
}
