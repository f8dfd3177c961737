//! The records of this worker in a registry.

use std::collections::BTreeMap;

use sconce::Device;
use sconce::core::device::DeviceKind;
use sconce_registry::{BootId, Heartbeat, Load, ModelRecord, Rates, RecordError, WorkerState};

use crate::models::load::load_of;
use crate::models::placement_records::placements;
use crate::state::app::App;
use crate::state::slot::{LoadedModel, Slot, TaskStatus};

/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// The models of the worker, loaded or not.
pub(super) fn models(app: &App) -> Vec<ModelRecord> {
    app.slots().iter().map(|slot| model(slot)).collect()
}

fn model(slot: &Slot) -> ModelRecord {
    let loaded = slot.loaded();
    let task = match slot.task() {
        TaskStatus::Known(task) => task.to_string(),
        TaskStatus::Pending | TaskStatus::Unavailable => String::new(),
    };
    ModelRecord {
        model: slot.name.clone(),
        aliases: slot.aliases.clone(),
        task,
        max_length: loaded.as_ref().map_or(0, |loaded| loaded.model.card().max_length.value),
        managed: slot.managed,
        placements: loaded.map_or_else(Vec::new, |loaded| {
            placements(&loaded.model.plan(), loaded.model.placement().as_ref(), loaded.model.class().as_ref())
        }),
    }
}

/// A heartbeat of the worker. Rates and latency are those of the model that was used last.
pub(super) fn heartbeat(app: &App, state: WorkerState, boot_id: BootId, sequence: u64) -> Heartbeat {
    let slots = app.slots();
    let loaded = slots.iter().filter_map(|slot| Some((slot.last_used(), slot.loaded()?)));
    let last_used = loaded.max_by_key(|(used, _)| *used).map(|(_, loaded)| loaded);
    let (rates, latency) = last_used.map_or((Rates::default(), 0.0), |loaded| speed(&loaded));
    let load = Load { latency, ..load_of(app) };
    let mut heartbeat = Heartbeat { boot_id, sequence, state, load, rates, free_memory: free_memory(app) };
    // A machine with many devices names as many as fit.
    while matches!(heartbeat.encode(), Err(RecordError::TooLarge { .. }))
        && heartbeat.free_memory.pop_last().is_some()
    {}
    heartbeat
}

/// Throughput by request size, and the latency of one short text in seconds.
fn speed(loaded: &LoadedModel) -> (Rates, f32) {
    let rate = loaded.queue.rate();
    let of_batch = |index: usize| {
        let &(tokens, seconds) = loaded.warm_up.get(index)?;
        Some(tokens as f64 / seconds.max(1e-9))
    };
    let large = rate.tokens_per_second;
    let small = of_batch(0).unwrap_or(large).min(large);
    let medium = of_batch(loaded.warm_up.len() / 2).unwrap_or(large).min(large);
    let whole = |rate: f64| rate.round() as f32;
    let rates = Rates { small: whole(small), medium: whole(medium), large: whole(large) };
    (rates, (rate.min_seconds * 1e5).round() as f32 / 1e5)
}

/// Free memory by device in MiB: of the machine within the memory limit, and of each GPU by the account of this worker.
fn free_memory(app: &App) -> BTreeMap<String, u64> {
    let available = sconce::available();
    let limit = app.settings().models_limit().map(|limit| limit.saturating_sub(app.memory_used()));
    let main = available.into_iter().chain(limit).min();
    let mut free: BTreeMap<String, u64> =
        main.map(|bytes| (Device::Cpu.to_string(), bytes / MIB)).into_iter().collect();
    let gpus = app.runtimes().first().into_iter().flat_map(|runtime| &runtime.hardware().gpus);
    let slots = app.slots();
    for gpu in gpus {
        let Some((kind @ (DeviceKind::Metal | DeviceKind::Cuda), memory)) = gpu.kind.zip(gpu.memory) else {
            continue;
        };
        let device = kind.device(gpu.index);
        let loaded = slots.iter().filter_map(|slot| slot.loaded());
        let used: u64 = loaded.map(|loaded| loaded.model.memory().total(device)).sum();
        free.insert(device.to_string(), memory.saturating_sub(used) / MIB);
    }
    free
}
