//! Downgrades: placements that failed and what serves instead, in the log and the metrics.

use sconce::{Event, Model};
use serde_json::json;

use crate::app::App;
use crate::slot::{Phase, Slot};
use crate::worker::short;

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
        app.telemetry.warn("placement downgraded", &told);
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
        app.telemetry.warn("placement retried", &told);
    }
}
