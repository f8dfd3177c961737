//! State that all requests of a gateway share.

use std::sync::Arc;

use sconce_http::Edge;

use super::hedging::Hedging;
use super::liveness::Liveness;
use super::members::Members;
use super::metrics::Metrics;
use super::pin::Pins;
use super::rate_limits::RateLimits;
use super::settings::GatewaySettings;
use crate::backend::Backend;
use crate::placement::Placement;
use crate::worker_client::WorkerClient;

/// State that all requests of a gateway share.
pub(super) struct Gateway {
    pub(super) settings: GatewaySettings,
    pub(super) edge: Arc<Edge>,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) metrics: Metrics,
    pub(super) client: WorkerClient,
    pub(super) members: Arc<Members>,
    pub(super) liveness: Arc<Liveness>,
    pub(super) hedging: Hedging,
    pub(super) pins: Pins,
    pub(super) rate_limits: Arc<RateLimits>,
    pub(super) placement: Arc<Placement>,
}
