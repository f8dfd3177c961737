//! The model of a command: its source, constraints and overrides.

use std::num::NonZeroUsize;

use clap::Args;
use sconce::card::Overrides;
use sconce::core::device::UnknownName;
use sconce::planner::evidence::Goal;
use sconce::{Band, Constraints, Device, Dtype, EngineId, KvCacheDtype, PoolingMode, Task};

use crate::model_name::ModelName;

/// The model, its constraints, overrides and source.
#[derive(Clone, Args)]
pub(crate) struct ModelArguments {
    /// A short name (`sconce models --recommended`), a folder, a GGUF file, an id on the Hugging Face Hub, or a bundle
    #[arg(value_parser = ModelName, hide_possible_values = true)]
    pub(crate) model: String,
    /// Use only this engine: candle, native, onnx
    #[arg(long, help_heading = "Placement")]
    pub(crate) engine: Option<EngineId>,
    /// Use only this device: cpu, metal, metal:N, cuda, cuda:N
    #[arg(long, help_heading = "Placement")]
    pub(crate) device: Option<Device>,
    /// Use only this dtype: f32, f16, bf16; int8, int4 for quantized weights as stored
    #[arg(long, help_heading = "Placement")]
    pub(crate) dtype: Option<Dtype>,
    /// Use only these weights, by file name
    #[arg(long, help_heading = "Placement", value_name = "FILE")]
    pub(crate) weights: Option<String>,
    /// Maximum distance from the f32 reference: exact, half, coarse
    #[arg(long, help_heading = "Placement", default_value = "half")]
    pub(crate) band: Band,
    /// Optimize for the latency of one short text instead of throughput
    #[arg(long, help_heading = "Placement")]
    pub(crate) latency: bool,
    /// CPU threads [default: all cores]
    #[arg(long, help_heading = "Placement", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) overrides: ModelOverrides,
    /// Branch, tag or commit
    #[arg(long, help_heading = "Source")]
    pub(crate) revision: Option<String>,
    /// Open no socket: use folders and the hub cache only
    #[arg(long, help_heading = "Source")]
    pub(crate) offline: bool,
}

/// A task by its name; `chat` is `generate`.
pub(super) fn task(name: &str) -> Result<Task, UnknownName> {
    match name {
        "chat" => Ok(Task::Generate),
        "embedding" => Ok(Task::Embed),
        "reranking" => Ok(Task::Rerank),
        _ => name.parse(),
    }
}

/// Overrides of a model's card.
#[derive(Clone, Args)]
pub(crate) struct ModelOverrides {
    /// Task of the model: embed, rerank, classify, sparse, tokens, generate
    #[arg(long, help_heading = "Model overrides", value_parser = task)]
    pub(crate) task: Option<Task>,
    /// Pooling: `cls`, `max`, `mean`, `mean_sqrt_len`, `weighted_mean`, `last_token`
    #[arg(long, help_heading = "Model overrides")]
    pub(crate) pooling: Option<PoolingMode>,
    /// Whether outputs are L2-normalized
    #[arg(long, help_heading = "Model overrides", value_name = "true|false", hide_possible_values = true)]
    pub(crate) normalize: Option<bool>,
    /// Maximum sequence length; longer texts are truncated
    #[arg(long, help_heading = "Model overrides", value_name = "TOKENS")]
    pub(crate) max_length: Option<usize>,
    /// Dtype of the KV cache in text generation: `auto`, `q8_0` (half the memory of bf16)
    #[arg(long, help_heading = "Model overrides", value_name = "DTYPE")]
    pub(crate) kv_cache_dtype: Option<KvCacheDtype>,
}

impl ModelOverrides {
    pub(crate) fn to_overrides(&self) -> Overrides {
        Overrides {
            task: self.task,
            pooling: self.pooling,
            normalize: self.normalize,
            max_length: self.max_length,
            kv_cache_dtype: self.kv_cache_dtype,
        }
    }
}

impl ModelArguments {
    pub(crate) fn constraints(&self) -> Constraints {
        Constraints {
            engine: self.engine,
            device: self.device,
            dtype: self.dtype,
            weights: self.weights.clone(),
            band: self.band,
            goal: if self.latency { Goal::Latency } else { Goal::Throughput },
        }
    }

    pub(crate) fn overrides(&self) -> Overrides {
        self.overrides.to_overrides()
    }

    /// Number of CPU threads.
    pub(crate) fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(all, NonZeroUsize::get)
    }

    pub(crate) fn runtime(&self) -> sconce::Runtime {
        let builder = sconce::Runtime::builder().offline(self.offline);
        match self.threads {
            Some(threads) => builder.threads(threads.get()).build(),
            None => builder.build(),
        }
    }
}
