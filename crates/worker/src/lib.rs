//! A worker: serves the models of one machine over HTTP in the dialects of TEI, OpenAI, Cohere and Jina.
//!
//! Layers, top down; each imports only those below: `server` → `api` (dialects) → `operations` → `models` (lifecycle) →
//! `state` → `schedule` (queue, batches, text threads). `member`, beside `api`, registers the worker in a pool. The HTTP
//! edge itself is the crate `sconce-http`, and the registry of a pool `sconce-registry`.
// These macros panic on EPIPE; the log ignores it.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod api;
mod errors;
mod member;
mod models;
mod operations;
mod schedule;
mod server;
mod settings;
mod state;

pub use models::catalog::ModelLoader;
pub use sconce_http as http;
pub use sconce_registry as registry;
pub use server::{Serve, ServeError, Server};
pub use settings::{Callback, PoolRegistry, Settings, Worker};
pub use state::slot::LoadPolicy;
