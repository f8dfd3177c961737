//! Operational routes: probes, metrics, report, and TEI's `/info`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce::Task;
use serde_json::{Value, json};

use crate::models::readiness::{NotReady, check_readiness, phase, worker_state};
use crate::models::report::report_of;
use crate::operations::context::{ANY, ModelChoice};
use crate::state::app::{App, Scope};
use crate::state::label::short;
use crate::state::slot::{LoadedModel, Phase};
use sconce_http::Trusted;
use sconce_http::refusal::{CODE_HEADER, Dialect, Kind, Refusal};

/// Liveness probe.
#[utoipa::path(get, path = "/livez", tag = "probes", responses((status = 200)))]
pub(crate) async fn livez() -> &'static str {
    "alive\n"
}

/// Readiness probe.
///
/// Ready once every startup model is loaded, or was evicted. Otherwise names the models that are not ready, and why.
#[utoipa::path(get, path = "/readyz", tag = "probes", responses((status = 200), (status = 503)))]
pub(crate) async fn readyz(
    State(app): State<Arc<App>>,
    scope: Option<Extension<Scope>>,
    trusted: Extension<Trusted>,
) -> Response {
    match check_readiness(&app, scope.as_deref(), trusted.0.0) {
        None => Json(json!({ "ready": true, "state": worker_state(&app) })).into_response(),
        Some(NotReady { reason, models }) => {
            let state = worker_state(&app);
            let body = json!({ "ready": false, "state": state, "reason": reason, "not_ready": models });
            let headers = [(header::RETRY_AFTER, "1"), (CODE_HEADER, not_ready_kind(&app).code())];
            (StatusCode::SERVICE_UNAVAILABLE, headers, Json(body)).into_response()
        }
    }
}

/// The kind of refusal of a worker that is not ready.
fn not_ready_kind(app: &App) -> Kind {
    if app.is_paused() && !app.is_shutting_down() { Kind::Paused } else { Kind::NotReady }
}

/// Startup probe with the phase of each model.
#[utoipa::path(get, path = "/startupz", tag = "probes", responses((status = 200), (status = 503)))]
pub(crate) async fn startupz(State(app): State<Arc<App>>, trusted: Extension<Trusted>) -> Response {
    let slots = app.slots();
    let models: BTreeMap<&str, Phase> =
        slots.iter().map(|slot| (slot.name.as_str(), phase(slot, trusted.0.0))).collect();
    let started = !slots.iter().any(|slot| slot.is_starting());
    let seconds = app.started.elapsed().as_secs_f64();
    let body = Json(json!({ "started": started, "seconds": seconds, "models": models }));
    if started {
        return body.into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, [(CODE_HEADER, Kind::NotReady.code())], body).into_response()
}

/// TEI's readiness probe.
#[utoipa::path(get, path = "/health", tag = "TEI", responses((status = 200), (status = 503)))]
pub(crate) async fn health(
    State(app): State<Arc<App>>,
    scope: Option<Extension<Scope>>,
    trusted: Extension<Trusted>,
) -> Response {
    match check_readiness(&app, scope.as_deref(), trusted.0.0) {
        None => StatusCode::OK.into_response(),
        Some(NotReady { reason, .. }) => Refusal::new(not_ready_kind(&app), reason).respond(Dialect::Tei),
    }
}

/// Metrics in Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "operation", responses((status = 200)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.metrics.memory(sconce::resident(), app.provers(), app.settings().memory_limit);
    for slot in &*app.slots() {
        let loaded = slot.loaded();
        let (texts, tokens) = loaded.as_ref().map_or((0, 0), |loaded| loaded.queue.size());
        let name = [slot.name.as_str()];
        if let Some((loaded, placement)) =
            loaded.as_ref().and_then(|loaded| Some((loaded, loaded.model.placement()?)))
        {
            let placement = short(&placement);
            let concurrency = i64::try_from(loaded.model.concurrency()).unwrap_or(i64::MAX);
            app.metrics.concurrency.with_label_values(&[&slot.name, &placement]).set(concurrency);
            app.metrics.generation_load(&slot.name, &placement, || loaded.model.generation_load());
        }
        let rate = loaded.map_or(0.0, |loaded| loaded.queue.rate().tokens_per_second);
        app.metrics.rate.with_label_values(&name).set(rate as i64);
        app.metrics.queue_size.with_label_values(&name).set(i64::try_from(texts).unwrap_or(i64::MAX));
        app.metrics.queue_tokens.with_label_values(&name).set(i64::try_from(tokens).unwrap_or(i64::MAX));
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.text()).into_response()
}

/// Models, placements and evidence.
#[utoipa::path(get, path = "/v1/report", tag = "operation", responses((status = 200, body = Object)))]
pub(crate) async fn report(State(app): State<Arc<App>>) -> Response {
    Json(report_of(&app)).into_response()
}

/// TEI's model info.
#[utoipa::path(get, path = "/info", tag = "TEI", responses((status = 200), (status = 503)))]
pub(crate) async fn info(State(app): State<Arc<App>>, request: Request) -> Response {
    match ModelChoice::of(request.headers(), request.extensions()).loaded(&app, None, &ANY).await {
        Ok(loaded) => Json(tei_info(&app, &loaded)).into_response(),
        Err(refusal) => refusal.respond(Dialect::Tei),
    }
}

fn tei_info(app: &App, loaded: &LoadedModel) -> Value {
    let (card, plan) = (loaded.model.card(), loaded.model.plan());
    let placement = plan.chosen.as_ref().map(|chosen| &chosen.placement);
    let labels: BTreeMap<String, &String> = card
        .head
        .labels
        .iter()
        .flat_map(|said| said.value.iter().enumerate())
        .map(|(index, label)| (index.to_string(), label))
        .collect();
    let ids: BTreeMap<&String, usize> =
        labels.iter().map(|(index, label)| (*label, index.parse().unwrap_or(0))).collect();
    let names = json!({ "id2label": labels, "label2id": ids });
    let pooling: Vec<&str> = card.pooling.value.modes.iter().map(|mode| mode.name()).collect();
    let model_type = match card.task.value {
        Task::Embed | Task::Tokens => json!({ "embedding": { "pooling": pooling.join("+") } }),
        Task::Sparse => json!({ "embedding": { "pooling": "splade" } }),
        Task::Generate => json!({ "generator": {} }),
        Task::Rerank => json!({ "reranker": names }),
        Task::Classify => json!({ "classifier": names }),
    };
    let budget =
        loaded.queue.rate().budget(loaded.model.batch_layout(), card.width(), loaded.model.concurrency(), 0);
    json!({
        "model_id": loaded.name,
        "model_sha": placement
            .and_then(|placement| card.weights_named(&placement.weights))
            .map(|weights| &weights.identity),
        "model_dtype": placement.map(|placement| placement.dtype.to_string()),
        "model_type": model_type,
        "max_concurrent_requests": app.settings().http.max_connections,
        "max_input_length": card.max_length.value,
        "max_batch_tokens": budget.bulk,
        "max_batch_requests": null,
        "max_client_batch_size": app.settings().max_inputs,
        "auto_truncate": true,
        "tokenization_workers": app.settings().text_threads,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
        "placement": placement.map(short),
    })
}
