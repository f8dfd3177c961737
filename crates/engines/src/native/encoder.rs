//! A loaded model of the Native engine: blocks of sequences over threads, then pooling.

use std::cell::RefCell;
use std::sync::Arc;

use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{Cost, Encoder, EngineError};
use sconce_kernels::bf16::{Bf16, MatrixBf16};
use sconce_kernels::isa::Isa;
use sconce_kernels::product::Matrix;
use sconce_kernels::rows::Activation;

use super::bf16::{self, OnTiles, PackBf16};
use super::f32::{self, InF32, PackF32};
use super::scratch;
use super::weights::Weights;
use crate::description::Description;
use crate::head::Head;
use crate::threads::Threads;
use crate::weights::{Tensors, WeightsError};

/// Tokens that one thread takes at a time: their activations stay in its cache.
const BLOCK: usize = 256;

thread_local! {
    /// Scratch memory of a block, kept by each thread.
    static IN_F32: RefCell<f32::Room> = RefCell::default();
    static ON_TILES: RefCell<bf16::Room> = RefCell::default();
}

pub(super) struct NativeEncoder {
    description: Description,
    model: Packed,
    activation: Activation,
    head: Option<Head>,
    threads: Arc<Threads>,
}

enum Packed {
    F32(Weights<Matrix>, Isa),
    Bf16(Weights<MatrixBf16>, Bf16),
}

impl NativeEncoder {
    pub(super) fn f32(
        description: &Description,
        tensors: &dyn Tensors,
        isa: Isa,
        head: Option<Head>,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let model = Packed::F32(Weights::load(description, tensors, &PackF32(isa))?, isa);
        Ok(NativeEncoder::new(description, model, head, threads))
    }

    pub(super) fn bf16(
        description: &Description,
        tensors: &dyn Tensors,
        unit: Bf16,
        head: Option<Head>,
        threads: Arc<Threads>,
    ) -> Result<NativeEncoder, WeightsError> {
        let model = Packed::Bf16(Weights::load(description, tensors, &PackBf16(unit))?, unit);
        Ok(NativeEncoder::new(description, model, head, threads))
    }

    fn new(
        description: &Description,
        model: Packed,
        head: Option<Head>,
        threads: Arc<Threads>,
    ) -> NativeEncoder {
        let activation = description.activation.kernel();
        NativeEncoder { description: description.clone(), model, activation, head, threads }
    }

    fn rows(&self, batch: &Batch) -> Rows {
        let d = &self.description;
        let hidden = match &self.model {
            Packed::F32(weights, isa) => {
                let model = InF32 { d, weights, isa: *isa, activation: self.activation };
                IN_F32.with_borrow_mut(|room| scratch::bounded(room, |room| model.hidden(batch, room)))
            }
            Packed::Bf16(weights, unit) => {
                let model = OnTiles { d, weights, activation: self.activation, unit: *unit };
                ON_TILES.with_borrow_mut(|room| scratch::bounded(room, |room| model.hidden(batch, room)))
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

    fn cost(&self) -> Cost {
        Cost::Packed
    }

    fn concurrency(&self) -> usize {
        self.threads.count()
    }
}
