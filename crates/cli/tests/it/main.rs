//! Integration tests of the command, in one binary to link once.

mod bench;
mod bench_chat;
mod bench_steps;
mod bundle;
mod catalogue;
mod chat;
mod command;
mod completions;
mod config;
mod embedding_server;
mod harness;
mod hub;
mod manifest;
#[cfg(target_os = "linux")]
mod memory;
mod minilm;
mod mpnet;
mod observability;
mod outputs;
mod pool;
mod pool_agent;
mod pool_gateway;
mod pool_placement;
mod pool_up;
mod prompts;
mod serve;
mod tasks;
mod trust;
