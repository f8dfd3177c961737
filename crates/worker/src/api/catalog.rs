//! Routes of operators that add, remove and assess models at run time.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce_http::memory_budget::RequestMemory;
use sconce_http::refusal::{Dialect, Kind, Refusal};
use sconce_http::{Principal, body};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::fields::parse;
use crate::api::operator::authorize;
use crate::errors::refusal;
use crate::models::catalog::{Catalog, check_source};
use crate::operations::context::ModelChoice;
use crate::state::app::App;
use crate::state::slot::Slot;

/// Maximum bytes of a body.
const MAX_BODY: usize = 64 << 10;

/// The catalog, if models can be added at run time.
type MaybeCatalog = Option<Extension<Arc<Catalog>>>;

#[derive(Deserialize, ToSchema)]
pub(crate) struct LoadBody {
    /// A folder, a GGUF file or an id on the hub.
    source: String,
    /// Its name in requests; by default that of the source.
    name: Option<String>,
    /// Whether a pool manages the model: its load evicts no other model, and it is removed once it fails or is evicted.
    #[serde(default)]
    managed: bool,
}

#[derive(Deserialize, ToSchema)]
pub(crate) struct FitBody {
    /// A folder, a GGUF file or an id on the hub.
    source: String,
}

/// Adds a model and loads it.
///
/// Returns 200 if it is loaded, and 202 while it is not; `prefer: wait=N` waits up to N seconds. The source must be one of
/// `model_sources`. If operator keys are configured, only they are allowed.
#[utoipa::path(post, path = "/v1/models", tag = "operation", request_body = LoadBody, responses((status = 200, body = Object), (status = 202, body = Object), (status = 403), (status = 503)))]
pub(crate) async fn load(State(app): State<Arc<App>>, catalog: MaybeCatalog, request: Request) -> Response {
    let wait = ModelChoice::of(request.headers(), request.extensions()).wait();
    let added = async {
        let (catalog, body) = read::<LoadBody>(&app, catalog, request, "load models on").await?;
        let slot = catalog.add(&app, body.name, &body.source, body.managed)?;
        let mut phases = slot.phases();
        let is_decided = |slot: &Slot| slot.loaded().is_some() || slot.has_failed();
        let decided = async { while !is_decided(&slot) && phases.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(wait.unwrap_or_default(), decided).await;
        if slot.has_failed() {
            let message = format!("`{}` is not ready: {}", slot.name, slot.phase().reason());
            return Err(Refusal::new(Kind::NotReady, message).for_model(&slot.name));
        }
        Ok(slot)
    };
    match added.await {
        Ok(slot) => {
            let status = if slot.loaded().is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
            (status, Json(described(&slot))).into_response()
        }
        Err(refusal) => refusal.respond(Dialect::OpenAi),
    }
}

/// Removes a model.
///
/// Requests no longer find it. It is unloaded once its requests in flight have finished. If operator keys are configured,
/// only they are allowed.
#[utoipa::path(delete, path = "/v1/models/{id}", tag = "operation", responses((status = 200, body = Object), (status = 403), (status = 404)))]
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    catalog: MaybeCatalog,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    let removed = authorize(&app, &request, "unload models of").and_then(|()| {
        let catalog = known(catalog)?;
        let slot = app.slot(None, &id)?;
        catalog.remove(&app, &slot);
        Ok(json!({ "id": slot.name, "object": "model", "deleted": true }))
    });
    match removed {
        Ok(body) => Json(body).into_response(),
        Err(refusal) => refusal.respond(Dialect::OpenAi),
    }
}

/// What a load of a model would take: memory, speed, time, obstacles.
///
/// Nothing is loaded or proved. The source must be one of `model_sources`. If operator keys are configured, only they are
/// allowed.
#[utoipa::path(post, path = "/v1/fit", tag = "operation", request_body = FitBody, responses((status = 200, body = Object), (status = 403)))]
pub(crate) async fn fit(State(app): State<Arc<App>>, catalog: MaybeCatalog, request: Request) -> Response {
    let assessed = async {
        let (catalog, body) = read::<FitBody>(&app, catalog, request, "assess models on").await?;
        check_source(&app, &body.source)?;
        let app = Arc::clone(&app);
        let assess = move || catalog.fit(&app, &body.source).map_err(refusal);
        let failed = |_| Refusal::new(Kind::Model, "the model could not be assessed");
        tokio::task::spawn_blocking(assess).await.map_err(failed)?
    };
    match assessed.await {
        Ok(fit) => Json(fit).into_response(),
        Err(refusal) => refusal.respond(Dialect::OpenAi),
    }
}

/// Authorizes a request and reads its body.
async fn read<T: DeserializeOwned>(
    app: &App,
    catalog: MaybeCatalog,
    request: Request,
    action: &str,
) -> Result<(Arc<Catalog>, T), Refusal> {
    let authorized = authorize(app, &request, action);
    let (parts, body) = request.into_parts();
    if let Err(refusal) = authorized {
        return Err(if body::drain(&parts.headers, body).await { refusal } else { refusal.closing() });
    }
    let principal = parts.extensions.get::<Principal>().copied().unwrap_or_default();
    let (settings, memory) = (app.settings(), RequestMemory::new(&app.edge.memory, principal.tenant));
    let (bytes, _reservation) = body::read(&settings.http, &memory, &parts.headers, body).await?;
    let catalog = known(catalog)?;
    if bytes.len() > MAX_BODY {
        return Err(Refusal::new(Kind::TooLarge, format!("a body has at most {MAX_BODY} bytes")));
    }
    let (body, _) = parse(&bytes, settings.strict)?;
    Ok((catalog, body))
}

fn known(catalog: MaybeCatalog) -> Result<Arc<Catalog>, Refusal> {
    let missing = || Refusal::new(Kind::Forbidden, "this server loads no models at run time");
    catalog.map(|Extension(catalog)| catalog).ok_or_else(missing)
}

/// A model with its phase.
fn described(slot: &Slot) -> Value {
    let mut value = json!(slot.phase().without_details());
    value["id"] = json!(slot.name);
    value["object"] = json!("model");
    value
}
