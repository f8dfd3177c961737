//! Whether a model would fit: its memory, speed and load time, from its card, stored evidence and earlier loads.

use sconce::core::report::Footprint;
use sconce::{Error, LoadForecast, ModelBuilder, Task, resident};
use sconce_registry::PlacementRecord;
use serde::Serialize;

use crate::models::manager::load;
use crate::models::memory_estimator::MemoryEstimator;
use crate::models::placement_records::placements;
use crate::state::app::App;
use crate::state::label::short;

/// Tokens of a text by which plans estimate throughput.
const PLAN_TOKENS: f64 = 128.0;

/// What a load of a model would take.
#[derive(Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the answer")]
pub(crate) struct Fit {
    source: String,
    task: String,
    max_length: usize,
    /// Whether it fits beside the loaded models.
    fits: bool,
    /// Whether it fits once all other models are evicted.
    fits_alone: bool,
    /// Whether it is loaded already.
    loaded: bool,
    /// Whether the placement is proved on this machine. Otherwise memory is an upper bound, and speed is not known.
    proved: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    /// Numerics class of the placement, once its real weights are proved here.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// Estimated main memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Footprint>,
    /// Main memory that models may still take.
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_seconds: Option<f64>,
    /// Placements that work, and obstacles of the others.
    placements: Vec<PlacementRecord>,
}

/// What a load of the model of `builder` would take.
pub(super) fn fit(
    app: &App,
    estimator: &MemoryEstimator,
    builder: &ModelBuilder,
    source: &str,
) -> Result<Fit, Error> {
    let LoadForecast { card, plan, claim, class } = builder.forecast()?;
    let slots = app.slots();
    let loaded = slots.iter().find(|slot| slot.has_name(source)).and_then(|slot| slot.loaded());
    let of_load = claim.as_ref().map(load);
    let bytes = of_load.as_ref().map(|load| estimator.estimate(load));
    let memory = FreeMemory::of(app);
    let fits = |free: Option<u64>| bytes.is_some_and(|bytes| free.is_none_or(|free| bytes.peak <= free));
    let chosen = plan.chosen.as_ref();
    let tokens = if card.task.value == Task::Generate { 1.0 } else { PLAN_TOKENS };
    Ok(Fit {
        source: source.to_owned(),
        task: card.task.value.to_string(),
        max_length: card.max_length.value,
        fits: loaded.is_some() || fits(memory.free),
        fits_alone: loaded.is_some() || fits(memory.alone),
        loaded: loaded.is_some(),
        proved: chosen.is_some(),
        placement: claim.as_ref().map(|claim| short(&claim.placement)),
        class,
        bytes,
        free_bytes: memory.free,
        tokens_per_second: chosen.map(|chosen| (tokens * chosen.texts_per_second).round()),
        load_seconds: of_load.and_then(|load| estimator.expected_seconds(&load)),
        placements: placements(&plan, None, None),
    })
}

/// Main memory that models may take.
struct FreeMemory {
    /// Beside the loaded models.
    free: Option<u64>,
    /// Instead of the loaded models.
    alone: Option<u64>,
}

impl FreeMemory {
    fn of(app: &App) -> FreeMemory {
        let slots = app.slots();
        let of_models: u64 = slots
            .iter()
            .filter(|slot| slot.loaded().is_some())
            .filter_map(|slot| slot.memory())
            .map(|memory| memory.measured.resident)
            .sum();
        let used = resident().unwrap_or(0) + app.prover_memory();
        let limit = app.settings().models_limit();
        let within = |used: u64, available: Option<u64>| {
            limit.map(|limit| limit.saturating_sub(used)).into_iter().chain(available).min()
        };
        let available = sconce::available();
        FreeMemory {
            free: within(used, available),
            alone: within(used.saturating_sub(of_models), available.map(|bytes| bytes + of_models)),
        }
    }
}
