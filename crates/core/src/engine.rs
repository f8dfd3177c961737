//! The interface behind which every engine stands.

use std::error::Error;

use crate::batch::{Batch, Output};
use crate::card::{Format, ModelCard};
use crate::device::Device;
use crate::files::ModelFiles;
use crate::obstacle::Obstacle;
use crate::placement::{Dtype, EngineId, Placement};
use crate::probe::{ProbeCase, Sample};

/// A way to run models. It computes and reports; it judges nothing.
pub trait Engine: Send + Sync {
    /// Which engine this is.
    fn id(&self) -> EngineId;

    /// Version and switches of this build, so that evidence of another build is not believed.
    fn build(&self) -> String;

    /// Whether this build contains what `device` needs. Opens nothing.
    fn supports(&self, device: Device) -> Result<(), Obstacle>;

    /// The format of weights that it reads.
    fn format(&self) -> Format {
        Format::Safetensors
    }

    /// The number formats to try on `device`; a graph has its own, and only that is tried.
    fn dtypes(&self, device: Device) -> Vec<Dtype>;

    /// Whether single ops can be put to it; an engine of fused kernels has none.
    fn has_ops(&self) -> bool {
        true
    }

    /// What a twin of this model is like: models with the same answer share their evidence of being right.
    fn describe(&self, card: &ModelCard) -> Result<String, Obstacle>;

    /// Puts `case` to `placement`.
    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle>;

    /// Whether `load` may run beside the thread that computes on an accelerator, so that batches there go on. On the
    /// CPU it always does.
    fn loads_on_any_thread(&self) -> bool {
        false
    }

    /// Loads the model's weights.
    fn load(&self, model: &ModelSpec, placement: &Placement) -> Result<Box<dyn Encoder>, Obstacle>;
}

/// The model that is asked about: what it says of itself and where its files lie.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ModelSpec {
    /// What it says of itself.
    pub card: ModelCard,
    /// Where its files lie.
    pub files: ModelFiles,
}

/// A loaded model.
pub trait Encoder: Send + Sync {
    /// Computes a batch.
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError>;

    /// What batches cost.
    fn cost(&self) -> Cost;

    /// How many batches are computed at once to keep all of it busy. Where it is one, a thread of the device's own is
    /// the only one that asks; where it is more, so many threads may.
    fn concurrency(&self) -> usize {
        1
    }
}

/// What a batch costs beside its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Nothing: sequences of any lengths go well together.
    Packed,
    /// Sequences are padded to the longest: those of like length go well together.
    Padded,
}

/// Why a batch could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The device has no memory left; a smaller batch may do.
    #[error("out of memory")]
    OutOfMemory(#[source] Box<dyn Error + Send + Sync>),
    /// The engine or its device failed.
    #[error("the engine failed")]
    Failed(#[source] Box<dyn Error + Send + Sync>),
    /// The batch asks for something that can't be computed.
    #[error("the batch is malformed: {0}")]
    Malformed(String),
}
