//! The Candle engine, with sconce's packed forward pass.

mod attention;
mod device;
mod disentangled;
mod encoder;
mod fused;
mod generator;
mod kv_cache;
mod layers;
mod load;
mod logits_head;
mod matrix;
mod ops;
mod packed;
mod padded;
mod pooling;
mod rope;
#[cfg(test)]
mod tests;
mod transformer;

use std::sync::{Arc, OnceLock};

use sconce_core::card::{ModelCard, Task};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, LoadProgress, ModelSpec};
use sconce_core::obstacle::Obstacle;
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};

use crate::assembly::Assembly;
use crate::describe::describe;
use crate::description::Description;
use crate::errors;
use crate::loaded_head::LoadedHead;
use crate::probe;
use crate::step;
use crate::threads::Threads;
use crate::weight_files;
use crate::weights::{GeneratedTensors, Tensors};
use encoder::CandleEncoder;
use kv_cache::KvCache;
use layers::ForwardPath;
use load::{LoadError, Loader};
use logits_head::LogitsHead;
use transformer::Transformer;

/// Candle.
pub struct CandleEngine {
    count: usize,
    threads: OnceLock<Arc<Threads>>,
}

impl CandleEngine {
    /// Candle on `threads` own threads, started on first use.
    pub fn new(threads: usize) -> CandleEngine {
        CandleEngine { count: threads, threads: OnceLock::new() }
    }

    fn threads(&self) -> Arc<Threads> {
        Arc::clone(self.threads.get_or_init(|| Arc::new(Threads::with_pool(self.count))))
    }

    /// An encoder of `description` with weights from `tensors`, without head.
    fn build_encoder(
        &self,
        description: &Description,
        tensors: &dyn Tensors,
        placement: &Placement,
    ) -> Result<CandleEncoder, Obstacle> {
        let path = match placement.device {
            Device::Cpu => ForwardPath::Fused,
            Device::Metal(_) | Device::Cuda(_) => ForwardPath::Portable,
        };
        self.build_on(path, description, tensors, placement)
    }

    /// A decoder of `description` with its output matrix.
    fn build_generator(
        &self,
        description: &Description,
        tensors: &dyn Tensors,
        placement: &Placement,
    ) -> Result<CandleEncoder, Obstacle> {
        let mut encoder = self.build_encoder(description, tensors, placement)?;
        let loader = Loader::new(tensors, device::open(placement.device)?, placement.dtype);
        encoder.logits = Some(logits_head(&encoder.transformer, &loader).map_err(load_failed)?);
        Ok(encoder)
    }

    fn build_on(
        &self,
        path: ForwardPath,
        description: &Description,
        tensors: &dyn Tensors,
        placement: &Placement,
    ) -> Result<CandleEncoder, Obstacle> {
        let loader = Loader::new(tensors, device::open(placement.device)?, placement.dtype);
        let transformer = Transformer::load(description, path, &loader).map_err(load_failed)?;
        Ok(CandleEncoder { transformer, head: None, logits: None, path, threads: self.threads() })
    }
}

impl Engine for CandleEngine {
    fn id(&self) -> EngineId {
        EngineId::Candle
    }

    fn build(&self) -> String {
        let threads = self.count;
        format!(
            "candle {} sconce {} {} threads={threads}",
            device::CANDLE,
            crate::source_hash::source_hash(),
            device::switches()
        )
    }

    fn supports(&self, device: Device) -> Result<(), Obstacle> {
        device::supports(device)
    }

    fn dtypes(&self, device: Device) -> Vec<Dtype> {
        match device {
            // Candle rounds activations to 8 bits there, and the Native engine does not.
            Device::Cpu => Dtype::FLOATS.to_vec(),
            Device::Metal(_) | Device::Cuda(_) => Dtype::ALL.to_vec(),
        }
    }

    fn describe(&self, card: &ModelCard) -> Result<String, Obstacle> {
        probe::twin_of(card)
    }

    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle> {
        match case {
            ProbeCase::Op { op, shape } => {
                let handle = device::open(placement.device)?;
                let dtype = device::dtype(placement.dtype);
                let run = || ops::run(*op, *shape, &handle, dtype);
                device::with_autorelease(run).map_err(|error| errors::to_obstacle(&error))
            }
            ProbeCase::Twin { lengths, seed, output_kind } => {
                let twin = describe(&model.card)?.twin();
                let batch = probe::batch(lengths, *seed, *output_kind, &twin);
                let mut encoder = self.build_encoder(&twin, &GeneratedTensors, placement)?;
                encoder.head = Some(LoadedHead::for_probes());
                probe::once(&encoder, &batch)
            }
            ProbeCase::Speed { batch, length } => {
                let layer = describe(&model.card)?.one_layer();
                let batch = probe::speed_batch(*batch, *length, &layer);
                probe::time_of(&self.build_encoder(&layer, &GeneratedTensors, placement)?, &batch)
            }
            ProbeCase::Steps { lengths, chunk, seed } => {
                let twin = describe(&model.card)?.twin();
                let encoder = self.build_generator(&twin, &GeneratedTensors, placement)?;
                probe::steps(&encoder, &twin, (lengths, *chunk, *seed))
            }
            ProbeCase::Decode { batch, cached } => {
                let layers = describe(&model.card)?.uncached_layers(placement.dtype);
                let encoder = self.build_generator(&layers, &GeneratedTensors, placement)?;
                probe::decode(&encoder, &layers, (*batch, *cached))
            }
            ProbeCase::Canary { batches } => probe::canary(self.load(model, placement)?.as_ref(), batches),
        }
    }

    fn load_with_progress(
        &self,
        model: &ModelSpec,
        placement: &Placement,
        progress: &LoadProgress<'_>,
    ) -> Result<Box<dyn Encoder>, Obstacle> {
        let description = describe(&model.card)?;
        let tensors = weight_files::open(model, &placement.weights, progress);
        let tensors = tensors.map_err(|error| load_failed(error.into()))?;
        if model.card.task.value == Task::Generate {
            let checked = step::check_output_matrix(&model.card, tensors.as_ref());
            checked.map_err(|error| load_failed(error.into()))?;
            return Ok(Box::new(self.build_generator(&description, tensors.as_ref(), placement)?));
        }
        let mut encoder = self.build_encoder(&description, tensors.as_ref(), placement)?;
        let head = LoadedHead::load(&model.card, &model.files, tensors.as_ref());
        encoder.head = Some(head.map_err(|error| load_failed(error.into()))?);
        Ok(Box::new(encoder))
    }
}

/// The output matrix of a decoder with its bias, and an empty KV cache.
fn logits_head(transformer: &Transformer, from: &Loader<'_>) -> Result<LogitsHead, LoadError> {
    let d = transformer.description();
    let assembly = Assembly::new(d, from.tensors())?.keeping_blocks(from.keeps_blocks());
    let matrix = match transformer.tied_output().filter(|_| assembly.has_tied_output()) {
        Some(matrix) => matrix,
        None => from.matrix(assembly.output_embeddings()?, d.hidden)?,
    };
    let cache = KvCache::new(d, from.device(), from.cache_dtype());
    Ok(LogitsHead::new(matrix, assembly.output_bias()?, cache))
}

fn load_failed(error: LoadError) -> Obstacle {
    match error {
        LoadError::Candle(error) => errors::to_obstacle(&error),
        LoadError::Weights(error) => Obstacle::LoadFailed { reason: error.full_message() },
    }
}
