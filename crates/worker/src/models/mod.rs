//! The lifecycle of models: loaded within the memory limit, proved, served in batches, recovered, evicted.

pub(crate) mod batch_worker;
mod eviction;
pub(crate) mod heartbeat;
mod incidents;
pub(crate) mod manager;
mod memory_estimator;
pub(crate) mod readiness;
mod recovery;
pub(crate) mod report;
mod second_opinion;
mod shadow;
mod startup;
