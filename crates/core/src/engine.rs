//! The interface of engines.

use crate::batch::{Batch, Output};
use crate::card::{Format, ModelCard};
use crate::device::Device;
pub use crate::engine_error::EngineError;
use crate::files::ModelFiles;
use crate::generator::Generator;
use crate::obstacle::Obstacle;
use crate::placement::{Dtype, EngineId, Placement};
use crate::probe::{ProbeCase, Sample};

/// An inference engine. It computes and reports; the planner judges.
pub trait Engine: Send + Sync {
    /// The engine's id.
    fn id(&self) -> EngineId;

    /// Version and features of this build. Evidence of another build is not used.
    fn build(&self) -> String;

    /// Whether this build supports `device`. Opens nothing.
    fn supports(&self, device: Device) -> Result<(), Obstacle>;

    /// The weight formats that the engine reads: graphs, or tensors that a description interprets.
    fn formats(&self) -> &'static [Format] {
        &[Format::Safetensors, Format::Gguf]
    }

    /// Dtypes to try on `device`; a graph runs in its own dtype only.
    fn dtypes(&self, device: Device) -> Vec<Dtype>;

    /// Whether single ops can be probed; not in engines with fused kernels.
    fn has_ops(&self) -> bool {
        true
    }

    /// Describes the model's twin. Models with the same description share the twin's evidence.
    fn describe(&self, card: &ModelCard) -> Result<String, Obstacle>;

    /// Runs a probe case on `placement`.
    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle>;

    /// Whether `load` may run on another thread than the accelerator's device thread, so that batches continue. On the
    /// CPU it always may.
    fn loads_on_any_thread(&self) -> bool {
        false
    }

    /// Loads the model, and reports progress.
    fn load_with_progress(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        progress: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle>;

    /// Loads the model.
    fn load(&self, model: &ModelSpec, placement: &Placement) -> Result<Box<dyn Encoder>, Obstacle> {
        self.load_with_progress(model, placement, &|_, _| {})
    }
}

/// Receives the bytes of the weights that have been read, and their size.
pub type LoadProgress<'a> = dyn Fn(u64, u64) + 'a;

/// A model's card and its files.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ModelSpec {
    /// The card.
    pub card: ModelCard,
    /// The files.
    pub files: ModelFiles,
}

/// A loaded model.
pub trait Encoder: Send + Sync {
    /// Computes a batch.
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError>;

    /// How the engine lays out batches.
    fn batch_layout(&self) -> BatchLayout;

    /// Maximum number of concurrent `encode` calls. 1 means calls come from the device thread only.
    fn concurrency(&self) -> usize {
        1
    }

    /// Text generation, if the model is a decoder and the engine supports it.
    fn generator(&self) -> Option<&dyn Generator> {
        None
    }
}

/// How an engine lays out batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchLayout {
    /// Sequences are packed: any mix of lengths costs the same per token.
    Packed,
    /// Sequences are padded to the longest: similar lengths waste least.
    Padded,
}
