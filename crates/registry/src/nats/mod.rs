//! A registry and leases on NATS JetStream KV.

mod connection;
mod keys;
mod leases;
mod members;
mod options;
mod watch;

pub use members::NatsRegistry;
pub use options::{NatsAuth, NatsOptions, NatsTls};
