//! What the server says of itself: whether it lives and serves, what it counts, and the proof of where it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce::{Plan, Task};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::app::{App, Scope};
use crate::keys::Principal;
use crate::refusal::{Dialect, Kind, Refusal};
use crate::request_context::{ANY, ModelChoice};
use crate::routes::Trusted;
use crate::slot::{Host, Memory, Phase, Slot};
use crate::worker::short;

/// The process lives. Nothing is looked at.
#[utoipa::path(get, path = "/livez", tag = "life", responses((status = 200)))]
pub(crate) async fn livez() -> &'static str {
    "alive\n"
}

/// Whether the server is ready: every model that is loaded at the start is open, or was. If not, which models are not
/// ready and why.
#[utoipa::path(get, path = "/readyz", tag = "life", responses((status = 200), (status = 503)))]
pub(crate) async fn readyz(
    State(app): State<Arc<App>>,
    scope: Option<Extension<Scope>>,
    trusted: Extension<Trusted>,
) -> Response {
    match waits_for(&app, scope.map(|Extension(scope)| scope), *trusted) {
        None => Json(json!({ "ready": true })).into_response(),
        Some(NotReady { reason, models }) => {
            let body = Json(json!({ "ready": false, "reason": reason, "not_ready": models }));
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
        }
    }
}

/// How far each model is on its way up.
#[utoipa::path(get, path = "/startupz", tag = "life", responses((status = 200), (status = 503)))]
pub(crate) async fn startupz(State(app): State<Arc<App>>, trusted: Extension<Trusted>) -> Response {
    let models: BTreeMap<&str, Phase> =
        app.slots.iter().map(|slot| (slot.name.as_str(), phase(slot, *trusted))).collect();
    let up = !app.slots.iter().any(|slot| slot.is_starting());
    let status = if up { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let seconds = app.started.elapsed().as_secs_f64();
    (status, Json(json!({ "started": up, "seconds": seconds, "models": models }))).into_response()
}

/// TEI's name for being ready.
#[utoipa::path(get, path = "/health", tag = "TEI", responses((status = 200), (status = 503)))]
pub(crate) async fn health(
    State(app): State<Arc<App>>,
    scope: Option<Extension<Scope>>,
    trusted: Extension<Trusted>,
) -> Response {
    match waits_for(&app, scope.map(|Extension(scope)| scope), *trusted) {
        None => StatusCode::OK.into_response(),
        Some(NotReady { reason, .. }) => Refusal::new(Kind::NotReady, reason).respond(Dialect::Tei),
    }
}

/// The phase of a model, as whoever asks may see it.
fn phase(slot: &Slot, Trusted(trusted): Trusted) -> Phase {
    if trusted { slot.phase() } else { slot.phase().without_details() }
}

/// Why the server is not ready.
pub(crate) struct NotReady {
    reason: String,
    /// The models that it waits for.
    models: Vec<String>,
}

/// Why the server, or the one model that `scope` names, is not ready.
pub(crate) fn waits_for(app: &App, scope: Option<Scope>, trusted: Trusted) -> Option<NotReady> {
    if app.is_stopping() {
        return Some(NotReady { reason: "the server is stopping".to_owned(), models: Vec::new() });
    }
    let places = app.places(scope);
    let all_failed = app.slots[places.clone()].iter().all(|slot| slot.is_broken());
    let reason = |place: usize| {
        let slot = &app.slots[place];
        if all_failed || slot.blocks_readiness() {
            return Some((place, phase(slot, trusted).reason()));
        }
        slot.host().and_then(|host| out_of_service(&host, trusted)).map(|why| (place, why))
    };
    let waiting: Vec<(usize, String)> = places.filter_map(reason).collect();
    // Probes retry what failed: requests alone would never reach a model that clients see as not ready.
    waiting.iter().filter(|(place, _)| app.slots[*place].is_broken()).for_each(|(place, _)| app.want(*place));
    if waiting.is_empty() {
        return None;
    }
    let name = |place: usize| app.slots[place].name.clone();
    let reasons: Vec<String> =
        waiting.iter().map(|(place, why)| format!("`{}`: {why}", name(*place))).collect();
    let models = waiting.iter().map(|(place, _)| name(*place)).collect();
    Some(NotReady { reason: reasons.join("; "), models })
}

/// Why a model that is open answers nothing: all of its placements were taken out of service.
fn out_of_service(host: &Host, Trusted(trusted): Trusted) -> Option<String> {
    let why = host.model.out_of_service()?;
    Some(if trusted { format!("no placement is left; {why}") } else { "no placement is left".to_owned() })
}

/// What is counted.
#[utoipa::path(get, path = "/metrics", tag = "operation", responses((status = 200)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.metrics.memory(sconce::resident(), app.provers(), app.settings().memory_limit);
    for slot in &app.slots {
        let host = slot.host();
        let (texts, tokens) = host.as_ref().map_or((0, 0), |host| host.queue.size());
        let name = [slot.name.as_str()];
        if let Some((host, placement)) = host.as_ref().and_then(|host| Some((host, host.model.placement()?)))
        {
            let concurrency = i64::try_from(host.model.concurrency()).unwrap_or(i64::MAX);
            app.metrics.concurrency.with_label_values(&[&slot.name, &short(&placement)]).set(concurrency);
        }
        let rate = host.map_or(0.0, |host| host.queue.rate().tokens_per_second);
        app.metrics.rate.with_label_values(&name).set(rate as i64);
        app.metrics.queue_size.with_label_values(&name).set(i64::try_from(texts).unwrap_or(i64::MAX));
        app.metrics.queue_tokens.with_label_values(&name).set(i64::try_from(tokens).unwrap_or(i64::MAX));
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], app.metrics.text()).into_response()
}

/// Where a model runs and how that is known.
#[derive(Serialize, ToSchema)]
pub(crate) struct Report {
    model: String,
    /// What else it may be called.
    aliases: Vec<String>,
    phase: String,
    /// Bytes that it was thought to take and took when it was last loaded.
    #[schema(value_type = Option<Object>)]
    memory: Option<Memory>,
    #[schema(value_type = Option<Object>)]
    serving: Option<Serving>,
    #[schema(value_type = Option<Object>)]
    plan: Option<Plan>,
}

#[derive(Serialize)]
struct Serving {
    placement: Option<String>,
    /// The device that computes.
    device: Option<String>,
    /// The engine that does.
    backend: Option<String>,
    band: Option<String>,
    /// The numerics class of its vectors.
    class: Option<String>,
    task: String,
    max_length: usize,
    width: usize,
    /// As measured on batches of this server, the warm-up's first.
    tokens_per_second: f64,
    /// Seconds for one short text alone.
    least_seconds: f64,
    queued_texts: usize,
    queued_tokens: usize,
}

/// The placements of every model with their evidence, and what stands against the others.
#[utoipa::path(get, path = "/v1/report", tag = "operation", responses((status = 200, body = Object)))]
pub(crate) async fn report(State(app): State<Arc<App>>) -> Response {
    Json(report_of(&app)).into_response()
}

/// What the worker can do and how it knows: what it answers, tells its pool, and repeats as a heartbeat.
pub(crate) fn report_of(app: &App) -> Value {
    let one = |slot: &Arc<Slot>| {
        let host = slot.host();
        Report {
            model: slot.name.clone(),
            aliases: slot.aliases.clone(),
            phase: slot.phase().reason(),
            memory: slot.memory(),
            serving: host.as_ref().map(|host| serving(host)),
            plan: host.as_ref().map(|host| host.model.plan()),
        }
    };
    let models: Vec<Report> = app.slots.iter().map(one).collect();
    let told = |what: fn(&Serving) -> Option<&String>| -> BTreeSet<String> {
        models.iter().filter_map(|model| what(model.serving.as_ref()?)).cloned().collect()
    };
    let limit = app.settings().memory_limit;
    let memory = json!({ "resident": sconce::resident(), "provers": app.provers(), "limit": limit });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "worker_id": app.settings().worker.id,
        "ready": waits_for(app, None, Trusted(true)).is_none(),
        "capabilities": told(|serving| Some(&serving.task)),
        "device": told(|serving| serving.device.as_ref()),
        "backend": told(|serving| serving.backend.as_ref()),
        "memory": memory,
        "models": models,
    })
}

/// Has the worker stop as SIGTERM does: not ready at once, what is under way is finished. Where keys of operators are
/// known, only they may.
#[utoipa::path(post, path = "/v1/drain", tag = "operation", responses((status = 202), (status = 403)))]
pub(crate) async fn drain(State(app): State<Arc<App>>, request: Request) -> Response {
    let principal = request.extensions().get::<Principal>().copied().unwrap_or_default();
    let refused = if is_of_another_page(request.headers()) {
        Some("a page of another origin may not stop a worker")
    } else if app.settings().keys.names_operators() && !principal.operator {
        Some("only a key with ` operator` after it may stop a worker")
    } else {
        None
    };
    if let Some(message) = refused {
        let refusal = Refusal::new(Kind::Forbidden, message);
        app.metrics.refused(refusal.code());
        return refusal.respond(Dialect::OpenAi);
    }
    app.drain();
    (StatusCode::ACCEPTED, Json(json!({ "draining": true }))).into_response()
}

/// Whether a browser sent this for a page that did not come from here.
fn is_of_another_page(headers: &HeaderMap) -> bool {
    let word = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    match (word("sec-fetch-site"), word("origin")) {
        (Some(site), _) => site != "same-origin" && site != "none",
        (None, Some(origin)) => origin.split_once("://").map(|(_, host)| host) != word("host"),
        (None, None) => false,
    }
}

fn serving(host: &Host) -> Serving {
    let (plan, card, rate) = (host.model.plan(), host.model.card(), host.queue.rate());
    let (queued_texts, queued_tokens) = host.queue.size();
    Serving {
        placement: plan.chosen.as_ref().map(|chosen| short(&chosen.placement)),
        device: plan.chosen.as_ref().map(|chosen| chosen.placement.device.to_string()),
        backend: plan.chosen.as_ref().map(|chosen| chosen.placement.engine.to_string()),
        band: plan.chosen.as_ref().map(|chosen| chosen.band.to_string()),
        class: host.model.class(),
        task: card.task.value.to_string(),
        max_length: card.max_length.value,
        width: card.width(),
        tokens_per_second: rate.tokens_per_second,
        least_seconds: rate.least,
        queued_texts,
        queued_tokens,
    }
}

/// The model, as TEI tells of it.
#[utoipa::path(get, path = "/info", tag = "TEI", responses((status = 200), (status = 503)))]
pub(crate) async fn info(State(app): State<Arc<App>>, request: Request) -> Response {
    match ModelChoice::of(request.headers(), request.extensions()).host(&app, None, &ANY).await {
        Ok(host) => Json(tei_info(&app, &host)).into_response(),
        Err(refusal) => refusal.respond(Dialect::Tei),
    }
}

fn tei_info(app: &App, host: &Host) -> Value {
    let (card, plan) = (host.model.card(), host.model.plan());
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
        Task::Rerank => json!({ "reranker": names }),
        Task::Classify => json!({ "classifier": names }),
    };
    let budget = host.queue.rate().budget(host.model.cost(), card.width(), host.model.concurrency(), 0);
    json!({
        "model_id": host.name,
        "model_sha": placement
            .and_then(|placement| card.weights_named(&placement.weights))
            .map(|weights| &weights.identity),
        "model_dtype": placement.map(|placement| placement.dtype.to_string()),
        "model_type": model_type,
        "max_concurrent_requests": app.settings().max_connections,
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
