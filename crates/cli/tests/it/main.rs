//! One integration binary: two cores link once.

mod bench;
mod bundle;
mod command;
mod config;
mod embedding_server;
mod hub;
mod manifest;
#[cfg(target_os = "linux")]
mod memory;
mod minilm;
mod mpnet;
mod outputs;
mod pages;
mod pool;
mod prompts;
mod scene;
mod seeing;
mod serve;
mod tasks;
mod trust;
