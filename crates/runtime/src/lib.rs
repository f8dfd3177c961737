//! Run embedding models on the best place that provably works.

pub mod card;
pub mod tokens;
mod vocabulary;
