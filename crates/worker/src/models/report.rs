//! The report of a worker: its models, where they run, and the evidence for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use sconce::Plan;
use serde::Serialize;
use serde_json::{Value, json};

use crate::models::readiness::waits_for;
use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{Host, Memory, Slot};

/// Where a model runs and how that is known.
#[derive(Serialize)]
struct Report {
    model: String,
    /// What else it may be called.
    aliases: Vec<String>,
    phase: String,
    /// Bytes that it was thought to take and took when it was last loaded.
    memory: Option<Memory>,
    serving: Option<Serving>,
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
        "ready": waits_for(app, None, true).is_none(),
        "capabilities": told(|serving| Some(&serving.task)),
        "device": told(|serving| serving.device.as_ref()),
        "backend": told(|serving| serving.backend.as_ref()),
        "memory": memory,
        "models": models,
    })
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
