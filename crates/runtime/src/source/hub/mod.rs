//! Models of the Hugging Face hub, through the cache shared with Python's `huggingface_hub`.
//!
//! `hf-hub` provides the client and the cache layout. Its download is not used: it sends the token to every redirect
//! target, and accepts truncated files.

mod cache;
mod client;
mod config;
mod download;
mod environment;
mod error;
mod fetch;
mod gguf;
mod graphs;
mod listing;
mod names;
mod partial_file;
mod peek;
mod peek_gguf;
mod remove;

pub use cache::CachedModel;
pub(crate) use cache::files;
pub use config::{Hub, Progress};
pub use error::HubError;
pub use graphs::Graphs;
pub(crate) use names::is_unsafe_path;
pub use names::is_wanted;
pub use remove::RemovedModel;
