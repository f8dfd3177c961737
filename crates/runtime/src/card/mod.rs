//! Model cards: what a model's files declare, and the content hashes of its files.

mod chat;
mod classifier;
mod config;
pub(crate) mod contents;
mod error;
mod gguf;
mod json;
mod late_interaction;
mod modules;
mod read;
mod sparse;
mod task;
mod weights;

pub use config::Overrides;
pub use error::CardError;
pub use read::{read, sample};
