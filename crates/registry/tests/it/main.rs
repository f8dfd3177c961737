//! Tests of both registries.

// `allow-unwrap-in-tests` does not cover functions that tests call.
#![allow(clippy::unwrap_used)]

mod conformance;
mod in_process;
mod nats;
mod nats_access;
mod nats_outages;
mod pool;
mod server;
