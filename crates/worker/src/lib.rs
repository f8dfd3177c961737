//! A worker: serves the models of one machine over HTTP in the dialects of TEI, OpenAI, Cohere and Jina.
//!
//! Layers, top down; each imports only those below: `server` → `api` (dialects) → `operations` → `models` (lifecycle) →
//! `state` → `schedule` (queue, batches, text threads). The HTTP edge itself is the crate `sconce-http`.
// These macros panic on EPIPE; the log ignores it.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod api;
mod errors;
mod heartbeat;
mod models;
mod operations;
mod schedule;
mod server;
mod settings;
mod state;

pub use sconce_http as http;
pub use server::{Serve, ServeError, Server};
pub use settings::{Callback, Settings, Worker};
pub use state::slot::LoadPolicy;
