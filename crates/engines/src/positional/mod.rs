//! Positional encodings, shared by both interpreters.

pub mod alibi;
pub(crate) mod bias_table;
pub mod bucketed_bias;
pub mod disentangled;
pub mod rope;
