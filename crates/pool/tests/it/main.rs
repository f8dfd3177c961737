//! Tests of the pool.

// `allow-unwrap-in-tests` does not cover functions that tests call.
#![allow(clippy::unwrap_used)]

mod client;
mod dashboard;
mod faults;
mod fleet;
mod forwarding;
mod harness;
mod latency;
mod manager;
mod model_name;
mod nats;
mod pages;
mod pins;
mod placement;
mod simulation;
mod stand_in;
mod streams;
mod throughput;
