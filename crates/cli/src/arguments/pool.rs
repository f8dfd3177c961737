//! Commands of `sconce pool`.

use clap::{Args, Subcommand};

use super::pool_models::{PoolLoad, PoolUnload};

#[derive(Args)]
pub(crate) struct Pool {
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Subcommand)]
pub(crate) enum PoolCommand {
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
