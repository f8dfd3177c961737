//! State that requests and models of a worker share.

pub(crate) mod app;
pub(crate) mod generation_metrics;
pub(crate) mod label;
pub(crate) mod metrics;
mod registrar;
pub(crate) mod requests;
pub(crate) mod slot;
pub(crate) mod work;
