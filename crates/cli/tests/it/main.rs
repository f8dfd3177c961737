//! One integration binary: two cores link once.

mod bench;
mod command;
mod config;
mod embedding_server;
mod manifest;
mod minilm;
mod mpnet;
mod pool;
mod scene;
mod serve;
mod tasks;
