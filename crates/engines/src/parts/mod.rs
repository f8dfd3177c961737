//! Parts that some families have and others have not, each used by both interpreters through the same forward.

pub mod buckets;
pub mod disentangled;
pub mod rope;
pub mod slopes;
pub(crate) mod tables;
