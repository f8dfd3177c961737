//! The HTTP API: one module per dialect, and the router.

mod anthropic;
mod catalog;
mod chat;
mod cohere;
mod completion;
mod completions;
mod console;
mod fields;
mod handle;
mod headers;
mod llama_cpp;
mod logprobs;
mod messages;
mod meta;
mod ollama;
mod openai;
mod openapi;
mod operator;
mod prefix;
mod rerank;
mod responses;
pub(crate) mod router;
mod sampling;
mod tei;
mod text;

pub(crate) use prefix::strip;
