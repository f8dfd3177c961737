//! What a gateway reports about placement.

use serde::Serialize;

/// A desired model, and what runs of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct DesiredStatus {
    pub(crate) model: String,
    pub(crate) source: String,
    pub(crate) min_replicas: u32,
    pub(crate) max_replicas: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) class: Option<String>,
    /// Replicas that are loaded.
    pub(crate) loaded: u32,
    /// Replicas that are being loaded.
    pub(crate) loading: u32,
    /// Number of replicas to reach.
    pub(crate) target: u32,
    /// Why replicas are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) problem: Option<String>,
}

/// Placement as one gateway sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PlacementStatus {
    /// Whether this gateway loads and unloads models.
    pub(crate) leader: bool,
    /// Whether nothing is moved, because many workers have vanished.
    pub(crate) held: bool,
    pub(crate) desired: Vec<DesiredStatus>,
}
