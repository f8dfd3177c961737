//! Readiness: whether the worker, or one of its models, serves, and why not.

use crate::state::app::{App, Scope};
use crate::state::slot::{Host, Phase, Slot};

/// The phase of a model, as whoever asks may see it.
pub(crate) fn phase(slot: &Slot, trusted: bool) -> Phase {
    if trusted { slot.phase() } else { slot.phase().without_details() }
}

/// Why the server is not ready.
pub(crate) struct NotReady {
    pub(crate) reason: String,
    /// The models that it waits for.
    pub(crate) models: Vec<String>,
}

/// Why the server, or the one model that `scope` names, is not ready.
pub(crate) fn waits_for(app: &App, scope: Option<Scope>, trusted: bool) -> Option<NotReady> {
    if app.is_shutting_down() {
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
fn out_of_service(host: &Host, trusted: bool) -> Option<String> {
    let why = host.model.out_of_service()?;
    Some(if trusted { format!("no placement is left; {why}") } else { "no placement is left".to_owned() })
}
