//! A whole pool on one machine: NATS, a gateway and an agent.

mod nats_process;
mod nats_server;
mod run;

pub use nats_process::run_nats_server;
pub use nats_server::{NatsServer, NatsServerError, NatsServerOptions};
pub use run::{UpError, UpSettings, run};
