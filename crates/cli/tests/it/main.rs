//! One integration binary: two cores link once.

mod bench;
mod command;
mod embedding_server;
mod manifest;
mod mpnet;
mod scene;
mod serve;
mod tasks;
