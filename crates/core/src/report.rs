//! The report of a worker: its models, where they run, and how fast. A worker serves it at `/v1/report` and sends it
//! with every heartbeat; a gateway reads it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The report of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Version of sconce.
    pub version: String,
    /// Id of the worker in its pool.
    pub worker_id: String,
    /// Whether the worker is ready.
    pub ready: bool,
    /// Tasks of the models that serve.
    pub capabilities: BTreeSet<String>,
    /// Devices of the models that serve.
    pub device: BTreeSet<String>,
    /// Engines of the models that serve.
    pub backend: BTreeSet<String>,
    /// Memory of the process.
    pub memory: ProcessMemory,
    /// All models, loaded or not.
    pub models: Vec<ModelReport>,
}

/// Memory of a worker's process in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Resident set size, where the system reports it.
    pub resident: Option<u64>,
    /// Resident set size of prover processes.
    pub provers: u64,
    /// The memory limit.
    pub limit: Option<u64>,
}

/// The report of one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelReport {
    /// Its name.
    pub model: String,
    /// Its other names.
    pub aliases: Vec<String>,
    /// The phase of its lifecycle, in words.
    pub phase: String,
    /// Memory of its last load.
    pub memory: Option<ModelMemory>,
    /// Where and how fast it serves, if it is loaded.
    pub serving: Option<ServingReport>,
    /// The plan with its evidence, if it is loaded.
    pub plan: Option<Value>,
}

/// Memory of a model's last load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelMemory {
    /// The estimate before the load.
    pub predicted: Footprint,
    /// The measurement.
    pub measured: Footprint,
    /// Duration of the load.
    pub load_seconds: f64,
}

/// Bytes of main memory that a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footprint {
    /// Once it serves.
    pub resident: u64,
    /// At most while it is loaded.
    pub peak: u64,
}

/// Where and how fast a model serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServingReport {
    /// The active placement, without its weights.
    pub placement: Option<String>,
    /// Its device.
    pub device: Option<String>,
    /// Its engine.
    pub backend: Option<String>,
    /// Its accuracy band.
    pub band: Option<String>,
    /// The numerics class of its outputs.
    pub class: Option<String>,
    /// The task of the model.
    pub task: String,
    /// Maximum number of tokens of a sequence.
    pub max_length: usize,
    /// Output width.
    pub width: usize,
    /// Measured throughput of large batches.
    pub tokens_per_second: f64,
    /// Measured latency of one short text.
    pub min_seconds: f64,
    /// Texts in the queue.
    pub queued_texts: usize,
    /// Tokens in the queue.
    pub queued_tokens: usize,
}
