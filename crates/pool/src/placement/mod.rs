//! Placement: brings the models that workers run to the desired state of the pool.
//!
//! Every gateway has a manager; a lease decides which one acts. Two that act at once do no harm: the worker alone
//! arbitrates its memory.

mod demand;
mod fit;
mod lease;
mod manager;
mod members;
mod message;
mod offers;
mod retries;
mod space;
mod state;
mod status;
mod worker_api;

pub(crate) use manager::{Counters, Placement};
pub(crate) use worker_api::WorkerApi;
