//! The HTTP API: one module per dialect, and the router.

mod cohere;
mod docs;
mod fields;
mod handle;
mod headers;
mod meta;
mod openai;
mod openapi;
mod prefix;
mod rerank;
pub(crate) mod router;
mod tei;
mod text;

pub(crate) use prefix::strip;
