//! Models that are added and removed at run time.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce::{Error, ModelBuilder, ModelSource};
use sconce_http::refusal::{Kind, Refusal};

use crate::models::fit::{Fit, fit};
use crate::models::manager::{Command, ManagedModel};
use crate::models::memory_estimator::MemoryEstimator;
use crate::state::app::App;
use crate::state::slot::{LoadPolicy, Slot};

/// Builds a model of a source, with the settings that all models share.
pub type ModelLoader = Arc<dyn Fn(&str) -> ModelBuilder + Send + Sync>;

/// Adds and removes models of allowed sources.
pub(crate) struct Catalog {
    open: ModelLoader,
    estimator: Arc<Mutex<MemoryEstimator>>,
    commands: Sender<Command>,
    /// Held while a model is added, so that simultaneous requests add it once.
    adding: Mutex<()>,
}

impl Catalog {
    pub(crate) fn new(
        open: ModelLoader,
        estimator: Arc<Mutex<MemoryEstimator>>,
        commands: Sender<Command>,
    ) -> Catalog {
        Catalog { open, estimator, commands, adding: Mutex::default() }
    }

    /// Adds a model and requests its load. A model that is there already is the same one.
    pub(crate) fn add(
        &self,
        app: &App,
        name: Option<String>,
        source: &str,
        managed: bool,
    ) -> Result<Arc<Slot>, Refusal> {
        check_source(app, source)?;
        let own = ModelSource::parse(source, None).name();
        let name = name.unwrap_or_else(|| own.clone());
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = app.slots();
        let slot = match slots.iter().find(|slot| slot.has_name(&name)) {
            Some(slot) if slot.has_name(source) => Arc::clone(slot),
            Some(_) => {
                let message = format!("the model `{name}` has another source");
                return Err(Refusal::new(Kind::Validation, message).for_model(&name));
            }
            None => {
                let aliases = vec![own, source.to_owned()];
                let mut slot = Slot::new(name, aliases, LoadPolicy::OnDemand, false);
                slot.managed = managed;
                let slot = Arc::new(slot);
                let model = ManagedModel::added(Arc::clone(&slot), (self.open)(source));
                // The manager knows a model before requests find it.
                let _ = self.commands.send(Command::Add(Box::new(model)));
                app.add_slot(Arc::clone(&slot));
                slot
            }
        };
        drop(adding);
        app.request_load(&slot);
        Ok(slot)
    }

    /// Removes a model. It is unloaded once its requests in flight have finished.
    pub(crate) fn remove(&self, app: &App, slot: &Arc<Slot>) {
        app.remove_slot(slot);
        let _ = self.commands.send(Command::Remove(Arc::clone(slot)));
    }

    /// What a load of `source` would take. Reads files, and config files of the hub.
    pub(crate) fn fit(&self, app: &App, source: &str) -> Result<Fit, Error> {
        fit(app, &self.estimator(), &(self.open)(source), source)
    }

    fn estimator(&self) -> MutexGuard<'_, MemoryEstimator> {
        self.estimator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rejects sources that the settings do not allow. A short name of the catalogue is allowed if its repository is.
pub(crate) fn check_source(app: &App, source: &str) -> Result<(), Refusal> {
    let allowed = &app.settings().model_sources;
    if is_allowed(source, allowed) || is_allowed(&ModelSource::parse(source, None).to_string(), allowed) {
        return Ok(());
    }
    let message = format!("`{source}` is not an allowed source\nhint: `sconce serve --model-sources SOURCE`");
    Err(Refusal::new(Kind::Forbidden, message))
}

/// Whether a source is one of `allowed`, of which one that ends with `*` is a prefix.
fn is_allowed(source: &str, allowed: &[String]) -> bool {
    let climbs = source.split(['/', '\\']).any(|part| part == "..");
    !climbs
        && allowed.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => source.starts_with(prefix),
            None => source == pattern,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_allowed_by_name_or_prefix() {
        let allowed = ["org/one", "team/*", "/models/*"].map(str::to_owned);
        for source in ["org/one", "team/any", "team/any:Q4_K_M", "/models/a/b"] {
            assert!(is_allowed(source, &allowed), "{source}");
        }
        for source in ["org/one2", "org", "teams/any", "/model", "/models/../etc", "/models/a/..", ""] {
            assert!(!is_allowed(source, &allowed), "{source}");
        }
        assert!(!is_allowed("org/one", &[]), "none by default");
        assert!(is_allowed("org/one", &["*".to_owned()]));
    }
}
