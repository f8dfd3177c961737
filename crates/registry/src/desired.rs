//! The desired state of a pool: which models it should run.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::record::{RecordError, check_id, decode, encode};
use crate::registry::RegistryError;

/// Maximum size of an entry as JSON.
const MAX_DESIRED_BYTES: usize = 4096;

/// How many replicas of a model a pool should run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredModel {
    /// Its name in requests.
    pub model: String,
    /// Where its files come from, as workers know it.
    pub source: String,
    /// Minimum number of replicas. A model with 0 is loaded when a request names it.
    pub min_replicas: u32,
    /// Maximum number of replicas.
    pub max_replicas: u32,
    /// The numerics class that a replica must have to count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

impl DesiredModel {
    /// The entry as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        check_id("model name", &self.model)?;
        if self.source.is_empty() {
            return Err(RecordError::Invalid { field: "source", value: self.source.clone() });
        }
        if self.max_replicas == 0 || self.min_replicas > self.max_replicas {
            let value = format!("{}..{}", self.min_replicas, self.max_replicas);
            return Err(RecordError::Invalid { field: "range of replicas", value });
        }
        encode("desired model", self, MAX_DESIRED_BYTES)
    }

    /// Parses an entry.
    pub fn decode(json: &[u8]) -> Result<DesiredModel, RecordError> {
        decode("desired model", json)
    }
}

/// The desired models by name.
pub type DesiredModels = BTreeMap<String, Arc<DesiredModel>>;

/// Stores which models a pool should run.
#[async_trait]
pub trait DesiredState: Send + Sync {
    /// Sets the entry of a model. The last write wins.
    async fn set_desired(&self, desired: DesiredModel) -> Result<(), RegistryError>;

    /// Removes the entry of a model. Returns whether there was one.
    async fn remove_desired(&self, model: &str) -> Result<bool, RegistryError>;

    /// Starts to watch the entries.
    fn watch_desired(&self) -> DesiredWatcher;
}

/// Reads the desired state. Reading never waits for the backend. While the backend is away, the last known state stays.
#[derive(Clone, Debug)]
pub struct DesiredWatcher {
    models: watch::Receiver<Option<Arc<DesiredModels>>>,
}

impl DesiredWatcher {
    pub(crate) fn new(models: watch::Receiver<Option<Arc<DesiredModels>>>) -> DesiredWatcher {
        DesiredWatcher { models }
    }

    /// The desired models; `None` until they are known.
    pub fn models(&self) -> Option<Arc<DesiredModels>> {
        self.models.borrow().clone()
    }

    /// Waits until the models have changed since the last call. Returns `false` if they will never change again.
    pub async fn changed(&mut self) -> bool {
        self.models.changed().await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_reads_back_and_invalid_ones_are_refused() {
        let one = DesiredModel {
            model: "minilm".to_owned(),
            source: "org/minilm".to_owned(),
            min_replicas: 0,
            max_replicas: 3,
            class: Some("aa-half".to_owned()),
        };
        assert_eq!(DesiredModel::decode(&one.encode().unwrap()).unwrap(), one);
        for wrong in [
            DesiredModel { model: String::new(), ..one.clone() },
            DesiredModel { source: String::new(), ..one.clone() },
            DesiredModel { source: "a".repeat(5000), ..one.clone() },
            DesiredModel { max_replicas: 0, ..one.clone() },
            DesiredModel { min_replicas: 4, ..one.clone() },
        ] {
            assert!(wrong.encode().is_err(), "{wrong:?}");
        }
    }
}
