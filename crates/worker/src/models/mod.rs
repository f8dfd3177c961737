//! The model lifecycle: startup, batch workers, shadow checks, recovery of placements, eviction within the memory limit.

pub(crate) mod batch_worker;
mod eviction;
mod incidents;
pub(crate) mod load;
pub(crate) mod manager;
mod memory_estimator;
pub(crate) mod readiness;
mod recovery;
pub(crate) mod report;
mod second_opinion;
mod shadow;
mod startup;
