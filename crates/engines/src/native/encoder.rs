//! A loaded model of the Native engine: splits a batch over threads and applies the head.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{BatchLayout, Encoder, EngineError};
use sconce_core::generator::{CacheLayout, Generator};
use sconce_kernels::bf16::{Bf16, MatrixBf16};
use sconce_kernels::gemm::PackedMatrix;
use sconce_kernels::isa::Isa;
use sconce_kernels::rows::Activation;

use super::forward_bf16::{self, ForwardBf16, PackBf16};
use super::forward_f32::{self, ForwardF32, PackF32};
use super::kv_cache::KvCache;
use super::matrix::Matrix;
use super::scratch;
use super::stacked::{PackStored, StackedMatrix};
use super::weights::Weights;
use crate::description::Description;
use crate::loaded_head::LoadedHead;
use crate::step::{self, BLOCK_SIZE};
use crate::threads::Threads;
use crate::weights::{Tensors, WeightsError};

/// Tokens per block: its activations stay in a core's cache.
const BLOCK: usize = 256;

thread_local! {
    /// Scratch memory of each thread.
    static SCRATCH_F32: RefCell<forward_f32::Scratch> = RefCell::default();
    static SCRATCH_BF16: RefCell<forward_bf16::Scratch> = RefCell::default();
}

/// What a model computes from its last hidden states.
pub(super) enum LoadedOutput {
    /// Nothing: in probes.
    Hidden,
    /// The output of a head.
    Head(Box<LoadedHead>),
    /// The logits of a decoder.
    Logits,
}

impl LoadedOutput {
    fn generates(&self) -> bool {
        matches!(self, LoadedOutput::Logits)
    }
}

pub(super) struct NativeEncoder {
    description: Description,
    model: Packed,
    activation: Activation,
    head: Option<LoadedHead>,
    /// The KV cache of a decoder that generates.
    cache: Option<Mutex<Cache>>,
    threads: Arc<Threads>,
}

enum Packed {
    F32(Weights<PackedMatrix>, Isa),
    Bf16(Weights<MatrixBf16>, Bf16),
    /// Weights as they are stored.
    Stored(Weights<StackedMatrix>, Isa),
}

/// The KV cache of a decoder: in the dtype of its weights, bf16 if they are quantized.
enum Cache {
    F32(KvCache<f32>),
    Bf16(KvCache<u16>),
}

impl NativeEncoder {
    pub(super) fn f32(
        description: &Description,
        tensors: &dyn Tensors,
        isa: Isa,
        output: LoadedOutput,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let weights = Weights::load(description, tensors, &PackF32(isa), output.generates())?;
        Ok(NativeEncoder::new(description, Packed::F32(weights, isa), output, threads))
    }

    pub(super) fn bf16(
        description: &Description,
        tensors: &dyn Tensors,
        unit: Bf16,
        output: LoadedOutput,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let weights = Weights::load(description, tensors, &PackBf16(unit), output.generates())?;
        Ok(NativeEncoder::new(description, Packed::Bf16(weights, unit), output, threads))
    }

    /// A model with weights as they are stored.
    pub(super) fn stored(
        description: &Description,
        tensors: &dyn Tensors,
        packing: &PackStored,
        output: LoadedOutput,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let weights = Weights::load(description, tensors, packing, output.generates())?;
        Ok(NativeEncoder::new(description, Packed::Stored(weights, packing.isa), output, threads))
    }

    fn new(
        description: &Description,
        model: Packed,
        output: LoadedOutput,
        threads: Arc<Threads>,
    ) -> NativeEncoder {
        let activation = description.activation.kernel();
        let cache = output.generates().then(|| match &model {
            Packed::F32(..) => Cache::F32(KvCache::new(description)),
            Packed::Bf16(..) | Packed::Stored(..) => Cache::Bf16(KvCache::new(description)),
        });
        let head = match output {
            LoadedOutput::Hidden | LoadedOutput::Logits => None,
            LoadedOutput::Head(head) => Some(*head),
        };
        let (description, cache) = (description.clone(), cache.map(Mutex::new));
        NativeEncoder { description, model, activation, head, cache, threads }
    }

    /// The last hidden states of `batch`, or in a step the requested logits.
    fn forward(&self, batch: &Batch, cache: Option<&mut Cache>) -> Vec<f32> {
        let (d, activation) = (&self.description, self.activation);
        let requested = |hidden: Vec<f32>| {
            let mut rows = Vec::new();
            for (sequence, cached) in batch.sequences.iter().zip(&batch.cached) {
                let end = sequence.start + sequence.length;
                rows.extend_from_slice(&hidden[(end - cached.logits) * d.hidden..end * d.hidden]);
            }
            rows
        };
        match (&self.model, cache) {
            (Packed::F32(weights, isa), cache) => self.forward_f32(weights, *isa, batch, cache, &requested),
            (Packed::Stored(weights, isa), cache) => {
                self.forward_f32(weights, *isa, batch, cache, &requested)
            }
            (Packed::Bf16(weights, unit), cache) => {
                let model = ForwardBf16 { d, weights, activation, unit: *unit };
                SCRATCH_BF16.with_borrow_mut(|scratch| {
                    scratch::bounded(scratch, |scratch| match cache {
                        Some(Cache::Bf16(cache)) => {
                            model.logits(&requested(model.hidden(batch, Some(cache), scratch)))
                        }
                        Some(Cache::F32(_)) | None => model.hidden(batch, None, scratch),
                    })
                })
            }
        }
    }

    /// The same with f32 activations. `requested` picks the hidden states whose logits are requested.
    fn forward_f32<M: Matrix>(
        &self,
        weights: &Weights<M>,
        isa: Isa,
        batch: &Batch,
        cache: Option<&mut Cache>,
        requested: &dyn Fn(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32> {
        let model = ForwardF32 { d: &self.description, weights, isa, activation: self.activation };
        SCRATCH_F32.with_borrow_mut(|scratch| {
            scratch::bounded(scratch, |scratch| {
                let Some(cache) = cache else { return model.hidden::<f32>(batch, None, scratch) };
                let hidden = match cache {
                    Cache::F32(cache) => model.hidden(batch, Some(cache), scratch),
                    Cache::Bf16(cache) => model.hidden(batch, Some(cache), scratch),
                };
                model.logits(&requested(hidden), scratch)
            })
        })
    }

    fn rows(&self, batch: &Batch) -> Rows {
        let d = &self.description;
        let hidden = self.forward(batch, None);
        match (&self.head, batch.output_kind) {
            (Some(head), OutputKind::Pooled) => head.rows(&hidden, d.hidden, &batch.sequences),
            (Some(head), OutputKind::Projected) => head.projected(hidden, d.hidden),
            (_, OutputKind::Tokens | OutputKind::Logits)
            | (None, OutputKind::Pooled | OutputKind::Projected) => {
                Rows { width: d.hidden, values: hidden, norms: Vec::new() }
            }
        }
    }
}

impl Encoder for NativeEncoder {
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError> {
        self.description.check(batch)?;
        step::reject(batch)?;
        let rows = self.threads.in_blocks(batch, BLOCK, |block| Ok(self.rows(block)))?;
        Ok(match batch.output_kind {
            OutputKind::Pooled => Output::Rows(rows),
            OutputKind::Tokens | OutputKind::Projected | OutputKind::Logits => Output::Tokens(rows),
        })
    }

    fn batch_layout(&self) -> BatchLayout {
        BatchLayout::Packed
    }

    fn concurrency(&self) -> usize {
        self.threads.count()
    }

    fn generator(&self) -> Option<&dyn Generator> {
        self.cache.as_ref().map(|_| self as &dyn Generator)
    }
}

impl NativeEncoder {
    fn cache(&self) -> Result<MutexGuard<'_, Cache>, EngineError> {
        let absent = || EngineError::Malformed("the model was loaded without a KV cache".to_owned());
        Ok(self.cache.as_ref().ok_or_else(absent)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Generator for NativeEncoder {
    fn cache_layout(&self) -> CacheLayout {
        let block_bytes = self.cache().map_or(0, |cache| match &*cache {
            Cache::F32(cache) => cache.block_bytes(),
            Cache::Bf16(cache) => cache.block_bytes(),
        });
        CacheLayout { block_size: BLOCK_SIZE, block_bytes }
    }

    fn reserve(&self, blocks: usize) -> Result<(), EngineError> {
        let reserved = match &mut *self.cache()? {
            Cache::F32(cache) => cache.reserve(blocks),
            Cache::Bf16(cache) => cache.reserve(blocks),
        };
        let failed = || EngineError::OutOfMemory(format!("{blocks} blocks of the KV cache").into());
        if reserved { Ok(()) } else { Err(failed()) }
    }

    fn step(&self, batch: &Batch) -> Result<Output, EngineError> {
        let mut cache = self.cache()?;
        let blocks = match &*cache {
            Cache::F32(cache) => cache.blocks(),
            Cache::Bf16(cache) => cache.blocks(),
        };
        step::check(&self.description, batch, blocks)?;
        let cache = &mut *cache;
        let mut values = self.threads.all_threads(|| self.forward(batch, Some(cache)));
        step::finish_logits(&self.description, &[], &mut values);
        Ok(Output::Logits(Rows { width: self.description.vocabulary, values, norms: Vec::new() }))
    }

    fn copy(&self, pairs: &[(u32, u32)]) -> Result<(), EngineError> {
        match &mut *self.cache()? {
            Cache::F32(cache) => cache.copy(pairs),
            Cache::Bf16(cache) => cache.copy(pairs),
        }
        Ok(())
    }
}
