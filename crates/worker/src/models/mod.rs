//! The model lifecycle: startup, batch workers, shadow checks, recovery of placements, eviction within the memory limit.

pub(crate) mod batch_worker;
pub(crate) mod catalog;
mod eviction;
pub(crate) mod fit;
mod incidents;
pub(crate) mod load;
pub(crate) mod manager;
pub(crate) mod memory_estimator;
pub(crate) mod placement_records;
pub(crate) mod readiness;
mod recovery;
pub(crate) mod report;
mod second_opinion;
mod shadow;
mod startup;
