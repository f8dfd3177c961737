//! Routes that a gateway answers itself: models and report of the pool, probes, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sconce_http::refusal::{Dialect, Kind, Refusal};
use sconce_registry::{Member, WorkerState};
use serde::Serialize;
use serde_json::{Value, json};

use super::state::Gateway;
use crate::breaker::Circuit;

/// Liveness probe.
pub(super) async fn livez() -> &'static str {
    "alive\n"
}

/// Readiness probe: ready once a worker is.
pub(super) async fn readyz(State(gateway): State<Arc<Gateway>>) -> Response {
    let reason = if gateway.edge.is_shutting_down() {
        "the gateway is shutting down"
    } else if !gateway.members.is_ready() {
        "no worker of the pool is ready"
    } else {
        return Json(json!({ "ready": true })).into_response();
    };
    let body = Json(json!({ "ready": false, "reason": reason }));
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
}

fn is_ready(member: &Member<'_>) -> bool {
    let takes_requests = matches!(member.heartbeat.state, WorkerState::Ready | WorkerState::Degraded);
    takes_requests && member.registration.is_running()
}

/// A model of the pool, as OpenAI's API lists it.
#[derive(Debug, Serialize)]
pub(super) struct ModelObject {
    pub(super) id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Whether a ready worker has loaded it.
    pub(super) ready: bool,
    task: String,
    pub(super) max_length: usize,
    /// Workers that have it.
    workers: Vec<String>,
    /// Numerics classes of its answers.
    classes: Vec<String>,
}

pub(super) fn models_of(gateway: &Gateway) -> BTreeMap<String, ModelObject> {
    let mut models: BTreeMap<String, ModelObject> = BTreeMap::new();
    gateway.members.watcher.read(|map| {
        for member in map.iter() {
            for model in &member.registration.models {
                let entry = models.entry(model.model.clone()).or_insert_with(|| ModelObject {
                    id: model.model.clone(),
                    object: "model",
                    created: 0,
                    owned_by: "sconce",
                    ready: false,
                    task: model.task.clone(),
                    max_length: model.max_length,
                    workers: Vec::new(),
                    classes: Vec::new(),
                });
                entry.workers.push(member.registration.worker_id.clone());
                for placement in model.placements.iter().filter(|placement| placement.active) {
                    entry.ready |= is_ready(&member);
                    entry.classes.extend(placement.class.clone());
                }
                entry.classes.sort_unstable();
                entry.classes.dedup();
            }
        }
    });
    for model in gateway.placement.models().keys() {
        models.entry(model.clone()).or_insert_with(|| ModelObject {
            id: model.clone(),
            object: "model",
            created: 0,
            owned_by: "sconce",
            ready: false,
            task: String::new(),
            max_length: 0,
            workers: Vec::new(),
            classes: Vec::new(),
        });
    }
    models
}

/// Lists the models of the pool.
pub(super) async fn models(State(gateway): State<Arc<Gateway>>) -> Response {
    let data: Vec<ModelObject> = models_of(&gateway).into_values().collect();
    Json(json!({ "object": "list", "data": data })).into_response()
}

/// One model of the pool, by its name.
pub(super) async fn model(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Response {
    if let Some(model) = models_of(&gateway).remove(&id) {
        return Json(model).into_response();
    }
    let message = format!("unknown model `{id}`; available: {}", gateway.members.names().list());
    Refusal::new(Kind::UnknownModel, message).for_model(&id).respond(Dialect::OpenAi)
}

/// Members of the pool: state, load, rates, models.
pub(super) async fn report(State(gateway): State<Arc<Gateway>>) -> Response {
    let now = Instant::now();
    let circuits = |id: &str| gateway.members.with_balancer(|balancer| balancer.circuit(id, now));
    let model_circuits = |id: &str| {
        let circuits = gateway.members.with_balancer(|balancer| balancer.model_circuits(id, now));
        let circuits = circuits.into_iter().map(|(model, circuit)| (model, circuit_name(circuit)));
        circuits.collect::<BTreeMap<_, _>>()
    };
    let members: Vec<Value> = gateway.members.watcher.read(|map| {
        let member = |member: Member<'_>| {
            let (registration, heartbeat) = (member.registration, member.heartbeat);
            json!({
                "worker": registration.worker_id,
                "boot": registration.boot_id,
                "url": registration.url,
                "version": registration.version,
                "state": heartbeat.state,
                "circuit": circuits(&registration.worker_id).map(circuit_name),
                "model_circuits": model_circuits(&registration.worker_id),
                "heartbeat_age_ms": u64::try_from(member.received.elapsed().as_millis()).unwrap_or(u64::MAX),
                "load": heartbeat.load,
                "rates": {
                    "small": heartbeat.rates.small,
                    "medium": heartbeat.rates.medium,
                    "large": heartbeat.rates.large,
                },
                "free_memory_mib": heartbeat.free_memory,
                "models": registration.models,
                "failure": registration.failure,
            })
        };
        map.iter().map(member).collect()
    });
    let connected = gateway.members.watcher.is_connected();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "registry": { "connected": connected },
        "members": members,
        "placement": gateway.placement.status(),
    }))
    .into_response()
}

fn circuit_name(circuit: Circuit) -> &'static str {
    match circuit {
        Circuit::Closed => "closed",
        Circuit::Open => "open",
        Circuit::HalfOpen => "half_open",
    }
}

/// The name of a state in records and metrics.
fn state_name(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Starting => "starting",
        WorkerState::Ready => "ready",
        WorkerState::Paused => "paused",
        WorkerState::Draining => "draining",
        WorkerState::Degraded => "degraded",
    }
}

/// Metrics in Prometheus text format.
pub(super) async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let (metrics, now) = (&gateway.metrics, Instant::now());
    metrics.members.reset();
    metrics.in_flight.reset();
    metrics.open_circuits.reset();
    metrics.replicas.reset();
    let placement = gateway.placement.status();
    metrics.placement_leader.set(i64::from(placement.leader));
    metrics.placement_held.set(i64::from(placement.held));
    for one in &placement.desired {
        let missing = one.target.saturating_sub(one.loaded + one.loading);
        for (state, count) in [("loaded", one.loaded), ("loading", one.loading), ("missing", missing)] {
            metrics.replicas.with_label_values(&[one.model.as_str(), state]).set(i64::from(count));
        }
    }
    for (worker, requests) in gateway.liveness.in_flight() {
        metrics.in_flight.with_label_values(&[worker.as_str()]).add(requests);
    }
    gateway.members.watcher.read(|map| {
        metrics.connected.set(i64::from(map.is_connected()));
        for member in map.iter() {
            metrics.members.with_label_values(&[state_name(member.heartbeat.state)]).inc();
            let id = member.registration.worker_id.as_str();
            let circuit = gateway.members.with_balancer(|balancer| balancer.circuit(id, now));
            metrics.open_circuits.with_label_values(&[id]).set(i64::from(circuit == Some(Circuit::Open)));
        }
    });
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.text()).into_response()
}
