//! A registry, leases and bindings on NATS JetStream KV, and messages on NATS.

mod bindings;
mod broadcast;
mod connection;
mod keys;
mod leases;
mod members;
mod options;
mod watch;

pub use members::NatsRegistry;
pub use options::{NatsAuth, NatsOptions, NatsTls};
