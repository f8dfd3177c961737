//! A loaded model of the Native engine: splits a batch over threads and applies the head.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{BatchLayout, Encoder, EngineError};
use sconce_core::generator::{CacheLayout, Generator};
use sconce_kernels::bf16::{Bf16, MatrixBf16, STEP};
use sconce_kernels::gemm::{PackedMatrix, PackedMatrixBf16};
use sconce_kernels::isa::Isa;
use sconce_kernels::quant::{ByteRows, QuantMatrix};
use sconce_kernels::rows::Activation;
use sconce_kernels::team::Team;

use super::forward_bf16::ForwardBf16;
use super::forward_f32::{self, ForwardF32};
use super::kv_cache::KvCache;
use super::matrix::{ActivationBits, Cpu, Matrix};
use super::scratch;
use super::scratch_bf16;
use super::stacked::StackedMatrix;
use super::weights::{Packing, WeightRows, Weights};
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
    static SCRATCH_BF16: RefCell<scratch_bf16::Scratch> = RefCell::default();
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
    /// How prompts of a decoder with quantized weights are computed, if not as generated tokens are.
    prompts: Option<Prompts>,
    threads: Arc<Threads>,
}

/// How prompts are multiplied with quantized weights. Of many tokens, weights are widened on the way.
#[derive(Clone, Copy)]
enum Prompts {
    /// In bf16 on tiles.
    Tiles(Bf16),
    /// In f32.
    Floats,
}

/// Packed weights, and the instructions that they are packed for.
pub(super) enum Packed {
    F32(Weights<PackedMatrix>, Isa),
    Bf16(Weights<MatrixBf16>, Bf16),
    /// Weights in bf16, and products in f32.
    Widened(Weights<PackedMatrixBf16>, Isa),
    /// Weights as they are stored.
    Stored(Weights<StackedMatrix>, Isa),
}

/// The KV cache of a decoder: in the dtype of its weights, bf16 if they are quantized.
enum Cache {
    F32(KvCache<f32>),
    Bf16(KvCache<u16>),
}

impl NativeEncoder {
    /// Loads a model, whose weights `packing` packs.
    pub(super) fn load<M: WeightRows>(
        description: &Description,
        tensors: &dyn Tensors,
        packing: &impl Packing<M>,
        packed: impl FnOnce(Weights<M>) -> Packed,
        output: LoadedOutput,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let weights = Weights::load(description, tensors, packing, output.generates())?;
        Ok(NativeEncoder::new(description, packed(weights), output, threads))
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
            Packed::Bf16(..) | Packed::Widened(..) | Packed::Stored(..) => {
                Cache::Bf16(KvCache::new(description))
            }
        });
        let head = match output {
            LoadedOutput::Hidden | LoadedOutput::Logits => None,
            LoadedOutput::Head(head) => Some(*head),
        };
        let prompts = match &model {
            Packed::Stored(weights, isa) if cache.is_some() => {
                let on_tiles = Bf16::on_tiles(*isa).filter(|_| {
                    let has_panels = |width: usize| width.is_multiple_of(STEP);
                    let widths = [description.hidden, description.head_dim, description.intermediate];
                    widths.into_iter().all(has_panels) && weights.all_matrices(StackedMatrix::has_tiles)
                });
                let with_floats = QuantMatrix::takes_floats(*isa).then_some(Prompts::Floats);
                on_tiles.map(Prompts::Tiles).or(with_floats)
            }
            Packed::F32(..) | Packed::Bf16(..) | Packed::Widened(..) | Packed::Stored(..) => None,
        };
        let (description, cache) = (description.clone(), cache.map(Mutex::new));
        NativeEncoder { description, model, activation, head, cache, prompts, threads }
    }

    /// The last hidden states of `batch`, or in a step the requested logits.
    fn forward(&self, batch: &Batch, team: &Team, cache: Option<&mut Cache>) -> Vec<f32> {
        let (d, activation) = (&self.description, self.activation);
        let requested = |hidden: Vec<f32>| {
            let mut rows = Vec::new();
            for (sequence, cached) in batch.sequences.iter().zip(&batch.cached) {
                let end = sequence.start + sequence.length;
                rows.extend_from_slice(&hidden[(end - cached.logits) * d.hidden..end * d.hidden]);
            }
            rows
        };
        match (&self.model, cache, self.prompts) {
            (Packed::F32(weights, isa), cache, _) => {
                self.forward_f32(weights, Cpu::new(*isa, team), batch, cache, &requested)
            }
            (Packed::Widened(weights, isa), cache, _) => {
                self.forward_f32(weights, Cpu::new(*isa, team), batch, cache, &requested)
            }
            (Packed::Stored(weights, isa), Some(Cache::Bf16(cache)), Some(prompts)) => {
                let cpu = Cpu { activation_bits: ActivationBits::Eight, ..Cpu::new(*isa, team) };
                let model = ForwardF32 { d, weights, cpu, activation };
                let hidden = hidden_by_kind(&model, prompts, batch, cache);
                SCRATCH_F32.with_borrow_mut(|scratch| model.logits(&requested(hidden), scratch))
            }
            // The last hidden states of a prompt, as steps compute them: the canary measures them.
            (Packed::Stored(weights, _), None, Some(Prompts::Tiles(unit))) => {
                let model = ForwardBf16 { d, weights, activation, unit, team };
                SCRATCH_BF16.with_borrow_mut(|scratch| {
                    scratch::bounded(scratch, |scratch| model.hidden(batch, None, scratch))
                })
            }
            (Packed::Stored(weights, isa), cache, prompts) => {
                let mut cpu = Cpu::new(*isa, team);
                // Steps are faster with 8 bits, and the canary measures what they compute. Embeddings have 16.
                if self.cache.is_some() && prompts.is_none() && ByteRows::are_vectorized(*isa) {
                    cpu.activation_bits = ActivationBits::Eight;
                }
                self.forward_f32(weights, cpu, batch, cache, &requested)
            }
            (Packed::Bf16(weights, unit), cache, _) => {
                let model = ForwardBf16 { d, weights, activation, unit: *unit, team };
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
        cpu: Cpu<'_>,
        batch: &Batch,
        cache: Option<&mut Cache>,
        requested: &dyn Fn(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32> {
        let model = ForwardF32 { d: &self.description, weights, cpu, activation: self.activation };
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

    fn rows(&self, batch: &Batch, team: &Team) -> Rows {
        let d = &self.description;
        let hidden = self.forward(batch, team, None);
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

/// The last hidden states of a step with quantized weights: prompt tokens in bf16 on tiles or in f32, and generated tokens
/// with activations of 8 bits. A token is computed by its kind, whatever else is in the batch: so it has the same bits
/// alone, in a batch, and when it is computed again.
fn hidden_by_kind(
    model: &ForwardF32<'_, StackedMatrix>,
    prompts: Prompts,
    batch: &Batch,
    cache: &mut KvCache<u16>,
) -> Vec<f32> {
    let ForwardF32 { d, weights, cpu, activation } = *model;
    let mut hidden = vec![0.0; batch.tokens() * d.hidden];
    let mut put = |tokens: &step::SomeTokens, values: Vec<f32>| {
        let mut from = &values[..];
        for (index, tokens) in tokens {
            let row = batch.sequences[*index].start + tokens.start;
            let (own, rest) = from.split_at(tokens.len() * d.hidden);
            hidden[row * d.hidden..][..own.len()].copy_from_slice(own);
            from = rest;
        }
    };
    // Prompts come first: generated tokens of the same sequence read their keys and values.
    let [prompt, generated] = step::by_kind(batch);
    if !prompt.is_empty() {
        let part = batch.tokens_of(&prompt);
        let values = match prompts {
            Prompts::Tiles(unit) => {
                let model = ForwardBf16 { d, weights, activation, unit, team: cpu.team };
                SCRATCH_BF16.with_borrow_mut(|scratch| {
                    scratch::bounded(scratch, |scratch| model.hidden(&part, Some(cache), scratch))
                })
            }
            Prompts::Floats => {
                let cpu = Cpu { activation_bits: ActivationBits::Sixteen, ..cpu };
                let model = ForwardF32 { d, weights, cpu, activation };
                SCRATCH_F32.with_borrow_mut(|scratch| {
                    scratch::bounded(scratch, |scratch| model.hidden(&part, Some(cache), scratch))
                })
            }
        };
        put(&prompt, values);
    }
    if !generated.is_empty() {
        let part = batch.tokens_of(&generated);
        let values = SCRATCH_F32.with_borrow_mut(|scratch| {
            scratch::bounded(scratch, |scratch| model.hidden(&part, Some(cache), scratch))
        });
        put(&generated, values);
    }
    hidden
}

impl Encoder for NativeEncoder {
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError> {
        self.description.check(batch)?;
        step::reject(batch)?;
        let rows = self.threads.in_blocks(batch, BLOCK, |block, team| Ok(self.rows(block, team)))?;
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
        let separates_prompts = self.prompts.is_some();
        CacheLayout { block_size: BLOCK_SIZE, block_bytes, separates_prompts }
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
        let mut values = self.threads.all_threads(|team| self.forward(batch, team, Some(cache)));
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
