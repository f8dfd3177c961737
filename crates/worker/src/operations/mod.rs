//! Operations, independent of the dialect: from texts to a result that is written as JSON.

mod classify;
pub(crate) mod context;
mod embed;
mod enqueue;
pub(crate) mod inputs;
mod rerank;
pub(crate) mod response;

pub(crate) use classify::classify;
pub(crate) use embed::{Vectors, embed, embed_all, embed_sparse, prompt};
pub(crate) use rerank::{rerank, similarity};
