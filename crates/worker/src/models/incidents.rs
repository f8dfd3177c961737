//! Incidents and downgrades of placements in log and metrics.

use sconce::{BatchOutput, Event, Model};
use tracing::{info, warn};

use crate::state::app::App;
use crate::state::label::short;
use crate::state::slot::{LoadedModel, Phase, Slot};

/// Logs and counts the downgrades of a model since the last call.
pub(crate) fn report_downgrades(app: &App, name: &str, model: &Model) {
    for downgrade in model.drain_downgrades() {
        let (from, reason) = (short(&downgrade.from), downgrade.why.code());
        let to = downgrade.to.as_ref().map_or_else(|| "none".to_owned(), short);
        let why = &downgrade.why;
        app.edge.telemetry.log(|| warn!(model = name, from, to, reason, %why, "placement downgraded"));
        app.metrics.downgrades.with_label_values(&[name, &from, &to, reason]).inc();
    }
}

/// Updates the phase of the slot by an event of the runtime. Logs which placement is proved, and retries.
pub(crate) fn handle_event(app: &App, slot: &Slot, event: &Event<'_>) {
    let (before, phase) = (slot.phase(), Phase::of(event));
    if let Phase::Proving { placement, .. } = &phase
        && !matches!(&before, Phase::Proving { placement: earlier, .. } if earlier == placement)
    {
        app.edge.telemetry.log(|| info!(model = slot.name, placement, "proving placement"));
    }
    slot.enter(phase);
    if let Event::Retrying { placement, attempt, why } = event {
        let placement = short(placement);
        app.edge.telemetry.log(|| warn!(model = slot.name, placement, attempt, %why, "placement retried"));
    }
}

/// Logs and counts the incidents and downgrades of a model since the last call.
pub(crate) fn report_incidents(loaded: &LoadedModel, app: &App) {
    let name = &loaded.name;
    for incident in loaded.model.drain_incidents() {
        let (placement, kind) = (short(&incident.placement), incident.kind.name());
        let why = &incident.why;
        app.edge.telemetry.log(|| warn!(model = name, placement, kind, why, "placement quarantined"));
        app.metrics.trips.with_label_values(&[name.as_str(), &placement, kind]).inc();
    }
    report_downgrades(app, name, &loaded.model);
}

/// Counts fallbacks and splits of a computed batch.
pub(crate) fn count_fallbacks(name: &str, app: &App, computed: &BatchOutput) {
    let metrics = &app.metrics;
    let placement = short(&computed.placement);
    if !computed.incidents.is_empty() {
        metrics.fallbacks.with_label_values(&[name, &placement]).inc();
    }
    if computed.splits > 0 {
        metrics.splits.with_label_values(&[name, &placement]).inc_by(computed.splits as u64);
    }
}
