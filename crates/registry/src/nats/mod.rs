//! A registry, leases, bindings and the desired state on NATS JetStream KV, and messages on NATS.

mod bindings;
mod broadcast;
mod connection;
mod desired;
mod keys;
mod leases;
mod members;
mod options;
mod watch;

pub use members::NatsRegistry;
pub use options::{NatsAuth, NatsOptions, NatsTls};
