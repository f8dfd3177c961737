//! The report of this worker.

use std::collections::BTreeSet;
use std::sync::Arc;

use sconce::core::report::{ModelReport, ProcessMemory, ServingReport, WorkerReport};
use sconce_registry::WorkerState;
use serde::Serialize;

use crate::models::readiness::{check_readiness, worker_state};
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{LoadedModel, Slot};

/// The report of a worker with its state.
#[derive(Serialize)]
pub(crate) struct StateReport {
    state: WorkerState,
    #[serde(flatten)]
    report: WorkerReport,
}

/// The report of a worker: the response of `/v1/report`, and part of every heartbeat.
pub(crate) fn report_of(app: &App) -> StateReport {
    let models: Vec<ModelReport> = app.slots().iter().map(model).collect();
    let distinct = |value: fn(&ServingReport) -> Option<&String>| -> BTreeSet<String> {
        models.iter().filter_map(|model| value(model.serving.as_ref()?)).cloned().collect()
    };
    let settings = app.settings();
    let limit = settings.memory_limit;
    let report = WorkerReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        worker_id: settings.worker.id.clone(),
        ready: check_readiness(app, None, true).is_none(),
        capabilities: distinct(|serving| Some(&serving.task)),
        device: distinct(|serving| serving.device.as_ref()),
        backend: distinct(|serving| serving.backend.as_ref()),
        memory: ProcessMemory { resident: sconce::resident(), provers: app.provers(), limit },
        models,
    };
    StateReport { state: worker_state(app), report }
}

fn model(slot: &Arc<Slot>) -> ModelReport {
    let loaded = slot.loaded();
    ModelReport {
        model: slot.name.clone(),
        aliases: slot.aliases.clone(),
        phase: slot.phase().reason(),
        memory: slot.memory(),
        serving: loaded.as_ref().map(|loaded| serving(loaded)),
        plan: loaded.and_then(|loaded| serde_json::to_value(loaded.model.plan()).ok()),
    }
}

fn serving(loaded: &LoadedModel) -> ServingReport {
    let (plan, card, rate) = (loaded.model.plan(), loaded.model.card(), loaded.queue.rate());
    let (queued_texts, queued_tokens) = loaded.queue.size();
    let chosen = plan.chosen.as_ref();
    ServingReport {
        placement: chosen.map(|chosen| short(&chosen.placement)),
        device: chosen.map(|chosen| chosen.placement.device.to_string()),
        backend: chosen.map(|chosen| chosen.placement.engine.to_string()),
        band: chosen.map(|chosen| chosen.band.to_string()),
        class: loaded.model.class(),
        task: card.task.value.to_string(),
        max_length: card.max_length.value,
        width: card.width(),
        tokens_per_second: rate.tokens_per_second,
        min_seconds: rate.min_seconds,
        queued_texts,
        queued_tokens,
    }
}
