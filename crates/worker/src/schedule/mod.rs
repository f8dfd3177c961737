//! Scheduling: which texts are tokenized and computed next, for whom, and in which batch.

pub(crate) mod busy;
pub(crate) mod job;
pub(crate) mod list;
pub(crate) mod next_batch;
pub(crate) mod queue;
pub(crate) mod rate;
pub(crate) mod text_pool;
