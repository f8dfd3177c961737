//! Scheduling: the text thread pool, the queue of a model, fair queueing between tenants, and batch formation.

pub(crate) mod generation_quota;
pub(crate) mod in_flight;
pub(crate) mod job;
pub(crate) mod list;
pub(crate) mod next_batch;
pub(crate) mod queue;
pub(crate) mod rate;
pub(crate) mod text_pool;
