//! GGUF files: header, block formats, and tensors under the names of the hub.

pub mod added_tokens;
pub mod blocks;
pub mod config;
pub mod files;
pub mod header;
pub mod metadata;
mod names;
mod reader;
pub mod split;
