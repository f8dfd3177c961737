//! Operations, independent of the dialect: from texts to a result that is written as JSON.

mod call_ids;
pub(crate) mod chat_prompt;
mod classify;
pub(crate) mod context;
mod embed;
mod enqueue;
pub(crate) mod generate;
pub(crate) mod input_type;
pub(crate) mod inputs;
pub(crate) mod output_parser;
mod rerank;
pub(crate) mod response;
pub(crate) mod tools;

pub(crate) use classify::classify;
pub(crate) use embed::{Vectors, embed, embed_all, embed_sparse, prompt, token_ids_rejected};
pub(crate) use rerank::{rerank, similarity};
