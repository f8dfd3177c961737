//! The worker as a member of a pool: callbacks to a pool manager, and registration in a registry.

pub(crate) mod callback;
mod records;
pub(crate) mod registration;
