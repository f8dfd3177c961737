//! The load of the worker: requests in flight, and tokens that are not computed yet.

use std::fmt::Write as _;

use sconce::Task;
use sconce_registry::Load;

use crate::state::app::App;
use crate::state::slot::LoadedModel;

/// The load of the worker, without its latency.
pub(crate) fn load_of(app: &App) -> Load {
    let mut load = Load { requests: app.requests.count(), ..Load::default() };
    for loaded in app.slots().iter().filter_map(|slot| slot.loaded()) {
        load.tokens += unfinished_tokens(&loaded);
    }
    load
}

/// Tokens in the queue and in batches of a model. An output that is generated counts one token: that of its next step.
fn unfinished_tokens(loaded: &LoadedModel) -> u64 {
    let tokens = loaded.queue.unfinished_tokens();
    let generates = loaded.model.card().task.value == Task::Generate;
    let load = generates.then(|| loaded.model.generation_load()).flatten();
    (tokens + load.map_or(0, |load| load.running + load.waiting)) as u64
}

/// The load as the value of `x-sconce-load`.
pub(crate) fn header_value(load: &Load) -> String {
    let mut text = String::with_capacity(32);
    let _ = write!(text, "requests={}, tokens={}", load.requests, load.tokens);
    text
}
