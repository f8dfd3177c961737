//! Readiness of the server or of one model, the reason if it is not ready, and the state of the worker.

use std::sync::Arc;

use sconce_registry::WorkerState;

use crate::state::app::{App, Scope};
use crate::state::slot::{LoadedModel, Phase, Slot};

/// The phase of a model, without error details for untrusted callers.
pub(crate) fn phase(slot: &Slot, trusted: bool) -> Phase {
    if trusted { slot.phase() } else { slot.phase().without_details() }
}

/// Why the server is not ready.
pub(crate) struct NotReady {
    pub(crate) reason: String,
    /// The models that are not ready.
    pub(crate) models: Vec<String>,
}

/// The state of the worker.
pub(crate) fn worker_state(app: &App) -> WorkerState {
    let is_impaired = |slot: &Arc<Slot>| {
        slot.last_load_failed() || slot.loaded().is_some_and(|loaded| !loaded.model.quarantined().is_empty())
    };
    let slots = app.slots();
    if app.is_draining() {
        WorkerState::Draining
    } else if app.is_paused() {
        WorkerState::Paused
    } else if slots.iter().any(|slot| slot.is_starting()) {
        WorkerState::Starting
    } else if slots.iter().any(is_impaired) {
        WorkerState::Degraded
    } else {
        WorkerState::Ready
    }
}

/// Checks the server, or the one model of `scope`; `None` if it is ready.
pub(crate) fn check_readiness(app: &App, scope: Option<&Scope>, trusted: bool) -> Option<NotReady> {
    let server = |reason: &str| Some(NotReady { reason: reason.to_owned(), models: Vec::new() });
    if app.is_shutting_down() {
        return server("the server is shutting down");
    }
    if app.is_paused() {
        return server("the worker is paused");
    }
    let slots = app.slots_in(scope);
    let all_failed = slots.iter().all(|slot| slot.last_load_failed());
    let reason = |slot: &Arc<Slot>| {
        if all_failed || slot.blocks_readiness() {
            return Some(phase(slot, trusted).reason());
        }
        slot.loaded().and_then(|loaded| out_of_service(&loaded, trusted))
    };
    let not_ready: Vec<(&Arc<Slot>, String)> =
        slots.iter().filter_map(|slot| Some((slot, reason(slot)?))).collect();
    // Probes retry failed loads: an orchestrator sends no requests to a server that is not ready.
    let failed = not_ready.iter().filter(|(slot, _)| slot.last_load_failed());
    failed.for_each(|(slot, _)| app.request_load(slot));
    if not_ready.is_empty() {
        return None;
    }
    let reasons: Vec<String> =
        not_ready.iter().map(|(slot, why)| format!("`{}`: {why}", slot.name)).collect();
    let models = not_ready.iter().map(|(slot, _)| slot.name.clone()).collect();
    Some(NotReady { reason: reasons.join("; "), models })
}

/// The reason if all placements of a loaded model are quarantined.
fn out_of_service(loaded: &LoadedModel, trusted: bool) -> Option<String> {
    let why = loaded.model.out_of_service()?;
    Some(if trusted {
        format!("all placements are quarantined; {why}")
    } else {
        "all placements are quarantined".to_owned()
    })
}
