//! A loaded model of the Native engine: splits a batch over threads and applies the head.

use std::cell::RefCell;
use std::sync::Arc;

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{BatchLayout, Encoder, EngineError};
use sconce_kernels::bf16::{Bf16, MatrixBf16};
use sconce_kernels::gemm::PackedMatrix;
use sconce_kernels::isa::Isa;
use sconce_kernels::rows::Activation;

use super::forward_bf16::{self, ForwardBf16, PackBf16};
use super::forward_f32::{self, ForwardF32, PackF32};
use super::scratch;
use super::weights::Weights;
use crate::description::Description;
use crate::loaded_head::LoadedHead;
use crate::threads::Threads;
use crate::weights::{Tensors, WeightsError};

/// Tokens per block: its activations stay in a core's cache.
const BLOCK: usize = 256;

thread_local! {
    /// Scratch memory of each thread.
    static SCRATCH_F32: RefCell<forward_f32::Scratch> = RefCell::default();
    static SCRATCH_BF16: RefCell<forward_bf16::Scratch> = RefCell::default();
}

pub(super) struct NativeEncoder {
    description: Description,
    model: Packed,
    activation: Activation,
    head: Option<LoadedHead>,
    threads: Arc<Threads>,
}

enum Packed {
    F32(Weights<PackedMatrix>, Isa),
    Bf16(Weights<MatrixBf16>, Bf16),
}

impl NativeEncoder {
    pub(super) fn f32(
        description: &Description,
        tensors: &dyn Tensors,
        isa: Isa,
        head: Option<LoadedHead>,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let model = Packed::F32(Weights::load(description, tensors, &PackF32(isa))?, isa);
        Ok(NativeEncoder::new(description, model, head, threads))
    }

    pub(super) fn bf16(
        description: &Description,
        tensors: &dyn Tensors,
        unit: Bf16,
        head: Option<LoadedHead>,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let model = Packed::Bf16(Weights::load(description, tensors, &PackBf16(unit))?, unit);
        Ok(NativeEncoder::new(description, model, head, threads))
    }

    fn new(
        description: &Description,
        model: Packed,
        head: Option<LoadedHead>,
        threads: Arc<Threads>,
    ) -> NativeEncoder {
        let activation = description.activation.kernel();
        NativeEncoder { description: description.clone(), model, activation, head, threads }
    }

    fn rows(&self, batch: &Batch) -> Rows {
        let d = &self.description;
        let hidden = match &self.model {
            Packed::F32(weights, isa) => {
                let model = ForwardF32 { d, weights, isa: *isa, activation: self.activation };
                SCRATCH_F32.with_borrow_mut(|scratch| {
                    scratch::bounded(scratch, |scratch| model.hidden(batch, scratch))
                })
            }
            Packed::Bf16(weights, unit) => {
                let model = ForwardBf16 { d, weights, activation: self.activation, unit: *unit };
                SCRATCH_BF16.with_borrow_mut(|scratch| {
                    scratch::bounded(scratch, |scratch| model.hidden(batch, scratch))
                })
            }
        };
        match (&self.head, batch.output_kind) {
            (Some(head), OutputKind::Pooled) => head.rows(&hidden, d.hidden, &batch.sequences),
            (Some(head), OutputKind::Projected) => head.projected(hidden, d.hidden),
            (_, OutputKind::Tokens) | (None, OutputKind::Pooled | OutputKind::Projected) => {
                Rows { width: d.hidden, values: hidden, norms: Vec::new() }
            }
        }
    }
}

impl Encoder for NativeEncoder {
    fn encode(&self, batch: &Batch) -> Result<Output, EngineError> {
        self.description.check(batch)?;
        let rows = self.threads.in_blocks(batch, BLOCK, |block| Ok(self.rows(block)))?;
        Ok(match batch.output_kind {
            OutputKind::Pooled => Output::Rows(rows),
            OutputKind::Tokens | OutputKind::Projected => Output::Tokens(rows),
        })
    }

    fn batch_layout(&self) -> BatchLayout {
        BatchLayout::Packed
    }

    fn concurrency(&self) -> usize {
        self.threads.count()
    }
}
