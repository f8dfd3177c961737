//! What the members of a pool run, as replicas.

use sconce_registry::{DesiredModel, MemberMap, ModelRecord, WorkerState};

use crate::class::NumericsClass;
use crate::place::Replica;

/// A worker as placement sees it.
#[derive(Clone, Debug)]
pub(super) struct WorkerView {
    pub(super) id: String,
    pub(super) url: String,
    pub(super) state: WorkerState,
    /// Measured tokens per second.
    pub(super) rate: f64,
    pub(super) models: Vec<ModelRecord>,
    /// Changes with the process and with its models.
    pub(super) version: u64,
}

impl WorkerView {
    /// The members of a map.
    pub(super) fn of(map: &MemberMap) -> Vec<WorkerView> {
        map.iter()
            .map(|member| {
                let (registration, rates) = (member.registration, &member.heartbeat.rates);
                let rate = f64::from(rates.small.max(rates.medium).max(rates.large));
                let mut parts = vec![registration.boot_id.to_string()];
                for model in &registration.models {
                    parts.push(format!("{} {}", model.model, is_loaded(model)));
                }
                WorkerView {
                    id: registration.worker_id.clone(),
                    url: registration.url.clone(),
                    state: member.heartbeat.state,
                    rate: if rate.is_finite() { rate } else { 0.0 },
                    models: registration.models.clone(),
                    version: crate::random::stable_hash(parts.join("\n").as_bytes()),
                }
            })
            .collect()
    }

    /// Whether it may be asked to load models.
    pub(super) fn takes_models(&self) -> bool {
        matches!(self.state, WorkerState::Ready | WorkerState::Degraded)
    }

    /// Whether its replicas count. A worker that is draining leaves; one that is paused returns.
    pub(super) fn stays(&self) -> bool {
        self.state != WorkerState::Draining
    }
}

/// A replica, or what was one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Held {
    /// Of a model as it is desired, or of one that is not desired.
    Replica {
        replica: Replica,
        /// Whether it is loaded; if not, it is being loaded.
        is_loaded: bool,
    },
    /// Of a desired model with another source: it makes way for the right one.
    OtherSource {
        /// Name of the model.
        model: String,
    },
}

/// What a worker holds.
pub(super) fn held<'a>(
    worker: &'a WorkerView,
    desired: &'a [DesiredModel],
) -> impl Iterator<Item = Held> + 'a {
    worker.models.iter().map(move |record| {
        let matching = desired.iter().find(|one| is_of(record, one));
        if matching.is_none() && record.managed && desired.iter().any(|one| one.model == record.model) {
            return Held::OtherSource { model: record.model.clone() };
        }
        let replica = Replica {
            worker: worker.id.clone(),
            model: matching.map_or(&record.model, |one| &one.model).clone(),
            class: class(record),
            rate: worker.rate,
            is_managed: record.managed,
        };
        Held::Replica { replica, is_loaded: is_loaded(record) }
    })
}

/// Whether a model of a worker is the desired one: by its name, and by its source where the pool loaded it.
fn is_of(record: &ModelRecord, desired: &DesiredModel) -> bool {
    let has_name = |name: &str| record.model == name || record.aliases.iter().any(|alias| alias == name);
    if record.managed {
        record.model == desired.model && has_name(&desired.source)
    } else {
        has_name(&desired.model)
    }
}

/// Whether a placement of the model is active.
pub(super) fn is_loaded(record: &ModelRecord) -> bool {
    record.placements.iter().any(|placement| placement.active)
}

fn class(record: &ModelRecord) -> Option<NumericsClass> {
    let active = record.placements.iter().find(|placement| placement.active)?;
    active.class.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use sconce_registry::PlacementRecord;

    use super::*;

    fn record(model: &str, source: &str, managed: bool, active: bool) -> ModelRecord {
        ModelRecord {
            model: model.to_owned(),
            aliases: vec![source.to_owned()],
            task: "embed".to_owned(),
            max_length: 0,
            managed,
            placements: vec![PlacementRecord {
                placement: "native/cpu/f32".to_owned(),
                active,
                class: Some("aa-half".to_owned()),
                band: None,
                obstacle: None,
            }],
        }
    }

    #[test]
    fn replicas_are_known_by_name_and_those_of_the_pool_by_source_too() {
        let worker = WorkerView {
            id: "w".to_owned(),
            url: String::new(),
            state: WorkerState::Ready,
            rate: 7.0,
            models: vec![
                record("own", "org/own", false, true),
                record("m", "org/m", true, false),
                record("n", "org/old", true, true),
                record("left", "org/left", true, true),
            ],
            version: 0,
        };
        let desired = |model: &str, source: &str| DesiredModel {
            model: model.to_owned(),
            source: source.to_owned(),
            min_replicas: 1,
            max_replicas: 1,
            class: None,
        };
        let desired = [desired("org/own", "elsewhere"), desired("m", "org/m"), desired("n", "org/n")];
        let held: Vec<Held> = held(&worker, &desired).collect();
        let replica = |model: &str, is_managed, is_loaded: bool| Held::Replica {
            replica: Replica {
                worker: "w".to_owned(),
                model: model.to_owned(),
                class: is_loaded.then(|| "aa-half".parse().unwrap()),
                rate: 7.0,
                is_managed,
            },
            is_loaded,
        };
        assert_eq!(
            held,
            [
                replica("org/own", false, true),
                replica("m", true, false),
                Held::OtherSource { model: "n".to_owned() },
                replica("left", true, true),
            ]
        );
    }
}
