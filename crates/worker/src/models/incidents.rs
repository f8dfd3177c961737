//! Incidents and downgrades of placements, in the log and the metrics.

use sconce::{BatchOutput, Event, Model};
use serde_json::json;

use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{Host, Phase, Slot};

/// Logs and counts the downgrades of a model since the last call.
pub(crate) fn report(app: &App, name: &str, model: &Model) {
    for downgrade in model.drain_downgrades() {
        let (from, reason) = (short(&downgrade.from), downgrade.why.code());
        let to = downgrade.to.as_ref().map_or_else(|| "none".to_owned(), short);
        let told = [
            ("model", json!(name)),
            ("from", json!(from)),
            ("to", json!(to)),
            ("reason", json!(reason)),
            ("why", json!(downgrade.why.to_string())),
        ];
        app.edge.telemetry.warn("placement downgraded", &told);
        app.metrics.downgrades.with_label_values(&[name, &from, &to, reason]).inc();
    }
}

/// Puts what `event` tells into the slot, and a retry into the log.
pub(crate) fn hear(app: &App, slot: &Slot, event: &Event<'_>) {
    slot.enter(Phase::of(event));
    if let Event::Retrying { placement, attempt, why } = event {
        let told = [
            ("model", json!(slot.name)),
            ("placement", json!(short(placement))),
            ("attempt", json!(attempt)),
            ("why", json!(why.to_string())),
        ];
        app.edge.telemetry.warn("placement retried", &told);
    }
}

/// Logs and counts what was taken out of service, whether or not the batch was answered.
pub(crate) fn note_incidents(host: &Host, app: &App) {
    let name = &host.name;
    for incident in host.model.drain_incidents() {
        let (place, kind) = (short(&incident.placement), incident.kind.name());
        let told = [
            ("model", json!(name)),
            ("placement", json!(place)),
            ("kind", json!(kind)),
            ("why", json!(incident.why)),
        ];
        app.edge.telemetry.warn("placement retired", &told);
        app.metrics.trips.with_label_values(&[name.as_str(), &place, kind]).inc();
    }
    report(app, name, &host.model);
}

pub(crate) fn note(name: &str, app: &App, computed: &BatchOutput) {
    let metrics = &app.metrics;
    let place = short(&computed.placement);
    if !computed.incidents.is_empty() {
        metrics.fallbacks.with_label_values(&[name, &place]).inc();
    }
    if computed.splits > 0 {
        metrics.splits.with_label_values(&[name, &place]).inc_by(computed.splits as u64);
    }
}
