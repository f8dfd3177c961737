//! Commands of `sconce pool`.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use sconce::Device;

use crate::config::Flags;

use super::pool_models::{PoolLoad, PoolUnload};

#[derive(Args)]
pub(crate) struct Pool {
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Subcommand)]
pub(crate) enum PoolCommand {
    /// Run a whole pool on this machine: NATS, a gateway, and a worker per device
    Up(Box<PoolUp>),
    /// Run the workers of this machine, one per device, and restart them if they fail
    Agent(Box<PoolAgent>),
    /// Serve the workers of a pool under one address
    Gateway(Box<sconce_pool::gateway::Arguments>),
    /// Show the workers of a pool: state, load, speed, models, and the models that it should run
    Status(PoolStatus),
    /// Let a pool run a model: its workers load it where it fits
    Load(PoolLoad),
    /// Let a pool run a model no longer
    Unload(PoolUnload),
    /// Let a worker take no requests until it is resumed
    Pause(PoolWorker),
    /// Let a paused worker take requests again
    Resume(PoolWorker),
    /// Let a worker finish its requests and stop
    Drain(PoolWorker),
    /// Run `nats-server` until standard input is closed
    #[command(hide = true)]
    NatsServer(PoolNatsServer),
}

#[derive(Args)]
pub(crate) struct PoolUp {
    #[command(flatten)]
    pub(crate) devices: Devices,
    /// Port of `nats-server` on this machine; 0 selects a free port; a server that listens there is used
    #[arg(long, value_name = "N", default_value_t = 4222, conflicts_with = "registry")]
    pub(crate) nats_port: u16,
    /// Flags of `sconce serve`; `--host`, `--port`, TLS and keys apply to the gateway, the others to the workers
    #[command(flatten)]
    pub(crate) flags: Flags,
}

#[derive(Args)]
pub(crate) struct PoolAgent {
    #[command(flatten)]
    pub(crate) devices: Devices,
    /// Flags of `sconce serve`, for every worker
    #[command(flatten)]
    pub(crate) flags: Flags,
}

#[derive(Args)]
pub(crate) struct Devices {
    /// Devices that get a worker, such as `cuda:0,cuda:1,cpu`; by default every GPU that this build can use, or the CPU
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) devices: Vec<Device>,
}

#[derive(Args)]
pub(crate) struct PoolNatsServer {
    /// The program
    pub(crate) program: OsString,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct PoolStatus {
    /// URL of a gateway; its API key is read from `SCONCE_API_KEY`
    #[arg(default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// Refresh until interrupted
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct PoolWorker {
    /// Id of the worker; its operator key is read from `SCONCE_API_KEY`
    pub(crate) worker: String,
    /// URL of a gateway, which knows the worker's URL
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) gateway: String,
}
