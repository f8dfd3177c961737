//! What the gateways of a pool tell each other about models.

use serde::{Deserialize, Serialize};

/// The topic of the messages.
pub(super) const TOPIC: &str = "placement";

/// A message to all gateways, of which the one that holds the lease acts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// Requests named these models.
    Used(Vec<String>),
    /// All replicas of each of these models were too busy for a request.
    Overloaded(Vec<String>),
    /// A model that requests wait for can be loaded nowhere.
    Refused {
        /// Name of the model.
        model: String,
        /// Why.
        reason: String,
        /// Seconds until the next attempt.
        retry_after: f64,
    },
}
