//! The Native engine: interprets descriptions on the CPU with sconce's kernels.

mod attention_bf16;
mod disentangled;
mod encoder;
mod forward_bf16;
mod forward_f32;
mod kv_cache;
mod matrix;
mod pack_bf16;
pub mod peak;
mod quantize;
mod scratch;
mod scratch_bf16;
mod stacked;
#[cfg(test)]
mod tests;
mod tile_matrix;
mod weights;

use std::sync::{Arc, OnceLock};

use sconce_core::card::{ModelCard, Task};
use sconce_core::device::Device;
use sconce_core::engine::{Encoder, Engine, LoadProgress, ModelSpec};
use sconce_core::obstacle::{BuildPart, Obstacle};
use sconce_core::placement::{Dtype, EngineId, Placement};
use sconce_core::probe::{ProbeCase, Sample};
use sconce_kernels::bf16::Bf16;
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::CodeWidth;
use sconce_kernels::team::Team;

use crate::describe::describe;
use crate::description::Description;
use crate::loaded_head::LoadedHead;
use crate::probe;
use crate::step;
use crate::threads::Threads;
use crate::weight_files;
use crate::weights::{GeneratedTensors, Tensors, WeightsError};
use encoder::{LoadedOutput, NativeEncoder, Packed};
use forward_f32::PackF32;
use pack_bf16::{PackBf16, PackWidened};
use stacked::PackStored;

/// The Native engine.
pub struct NativeEngine {
    count: usize,
    isa: Isa,
    threads: OnceLock<Arc<Threads>>,
}

impl NativeEngine {
    /// The Native engine on `threads` own threads, started on first use, with the widest instruction set.
    pub fn new(threads: usize) -> NativeEngine {
        NativeEngine { count: threads, isa: Isa::best(), threads: OnceLock::new() }
    }

    fn encoder(
        &self,
        description: &Description,
        tensors: &dyn Tensors,
        dtype: Dtype,
        output: LoadedOutput,
    ) -> Result<NativeEncoder, Obstacle> {
        let threads = Arc::clone(self.threads.get_or_init(|| Arc::new(Threads::with_team(self.count))));
        let isa = self.isa;
        // The threads that pack: those of the engine compute other models meanwhile.
        let team = Team::new(self.count);
        let encoder = match dtype {
            Dtype::F32 => {
                let packed = |weights| Packed::F32(weights, isa);
                NativeEncoder::load(description, tensors, &PackF32(isa, team), packed, output, threads)
            }
            Dtype::Bf16 => {
                if let Some(unit) = Bf16::of(isa) {
                    let packed = |weights| Packed::Bf16(weights, unit);
                    NativeEncoder::load(description, tensors, &PackBf16(unit, team), packed, output, threads)
                } else {
                    let packed = |weights| Packed::Widened(weights, isa);
                    NativeEncoder::load(
                        description,
                        tensors,
                        &PackWidened(isa, team),
                        packed,
                        output,
                        threads,
                    )
                }
            }
            Dtype::Int8 | Dtype::Int4 => {
                let width = if dtype == Dtype::Int8 { CodeWidth::Eight } else { CodeWidth::Four };
                let generated = tensors.generated().then_some(width);
                let packing = PackStored { isa, generated, team };
                let packed = |weights| Packed::Stored(weights, isa);
                NativeEncoder::load(description, tensors, &packing, packed, output, threads)
            }
            Dtype::F16 => {
                let reason = "the native engine computes in f32, bf16 and the quantized types of GGUF files";
                return Err(missing("f16 products", reason));
            }
        };
        encoder.map_err(|error| load_failed(&error))
    }
}

fn missing(op: &str, reason: &str) -> Obstacle {
    Obstacle::OpMissing { op: op.to_owned(), reason: reason.to_owned() }
}

fn load_failed(error: &WeightsError) -> Obstacle {
    Obstacle::LoadFailed { reason: error.full_message() }
}

impl Engine for NativeEngine {
    fn id(&self) -> EngineId {
        EngineId::Native
    }

    fn build(&self) -> String {
        let (hash, kernels) = (crate::source_hash::source_hash(), sconce_kernels::VERSION);
        format!("kernels {kernels} sconce {hash} {} threads={}", self.isa, self.count)
    }

    fn supports(&self, device: Device) -> Result<(), Obstacle> {
        match device {
            Device::Cpu => Ok(()),
            Device::Metal(_) | Device::Cuda(_) => Err(Obstacle::NotBuilt {
                part: BuildPart::Engine,
                what: "accelerators in the native engine".to_owned(),
                feature: None,
            }),
        }
    }

    fn dtypes(&self, device: Device) -> Vec<Dtype> {
        match device {
            Device::Cpu => vec![Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4],
            Device::Metal(_) | Device::Cuda(_) => Vec::new(),
        }
    }

    fn has_ops(&self) -> bool {
        false
    }

    fn describe(&self, card: &ModelCard) -> Result<String, Obstacle> {
        probe::twin_of(card)
    }

    fn probe(&self, model: &ModelSpec, placement: &Placement, case: &ProbeCase) -> Result<Sample, Obstacle> {
        match case {
            ProbeCase::Op { op, .. } => {
                Err(missing(&op.to_string(), "its kernels are fused: no op stands alone"))
            }
            ProbeCase::Twin { lengths, seed, output_kind } => {
                let twin = describe(&model.card)?.twin();
                let batch = probe::batch(lengths, *seed, *output_kind, &twin);
                let head = LoadedOutput::Head(Box::new(LoadedHead::for_probes()));
                let encoder = self.encoder(&twin, &GeneratedTensors, placement.dtype, head)?;
                probe::once(&encoder, &batch)
            }
            ProbeCase::Speed { batch, length } => {
                let layer = describe(&model.card)?.one_layer();
                let batch = probe::speed_batch(*batch, *length, &layer);
                let output = LoadedOutput::Hidden;
                probe::time_of(&self.encoder(&layer, &GeneratedTensors, placement.dtype, output)?, &batch)
            }
            ProbeCase::Steps { lengths, chunk, seed } => {
                let twin = describe(&model.card)?.twin();
                let encoder =
                    self.encoder(&twin, &GeneratedTensors, placement.dtype, LoadedOutput::Logits)?;
                probe::steps(&encoder, &twin, (lengths, *chunk, *seed))
            }
            ProbeCase::Decode { batch, cached } => {
                let layers = describe(&model.card)?.uncached_layers(placement.dtype);
                let encoder =
                    self.encoder(&layers, &GeneratedTensors, placement.dtype, LoadedOutput::Logits)?;
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
        let tensors =
            weight_files::open(model, &placement.weights, progress).map_err(|error| load_failed(&error))?;
        let output = if model.card.task.value == Task::Generate {
            step::check_output_matrix(&model.card, tensors.as_ref()).map_err(|error| load_failed(&error))?;
            LoadedOutput::Logits
        } else {
            let head = LoadedHead::load(&model.card, &model.files, tensors.as_ref());
            LoadedOutput::Head(Box::new(head.map_err(|error| load_failed(&error))?))
        };
        Ok(Box::new(self.encoder(&description, tensors.as_ref(), placement.dtype, output)?))
    }
}
