//! Parts that some families have and others have not, each used by both interpreters through the same forward.

pub mod alibi;
pub(crate) mod bias_table;
pub mod bucketed_bias;
pub mod disentangled;
pub mod rope;
