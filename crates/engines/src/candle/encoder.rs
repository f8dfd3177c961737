//! A loaded model: validates a batch, splits it over threads on the CPU, and applies the head.

use std::sync::Arc;

use candle_core::Result;
use sconce_core::batch::{Batch, Output, OutputKind, Rows};
use sconce_core::engine::{BatchLayout, Encoder, EngineError};
use sconce_core::generator::Generator;

use super::device::with_autorelease;
use super::layers::ForwardPath;
use super::logits_head::LogitsHead;
use super::pooling;
use super::transformer::Transformer;
use crate::errors;
use crate::loaded_head::LoadedHead;
use crate::step;
use crate::threads::Threads;

/// Tokens per block: its activations stay in a core's cache.
const BLOCK: usize = 384;

pub(super) struct CandleEncoder {
    pub(super) transformer: Transformer,
    pub(super) head: Option<LoadedHead>,
    /// The output matrix of a decoder that generates.
    pub(super) logits: Option<LogitsHead>,
    pub(super) path: ForwardPath,
    pub(super) threads: Arc<Threads>,
}

impl Encoder for CandleEncoder {
    fn encode(&self, batch: &Batch) -> std::result::Result<Output, EngineError> {
        self.transformer.description().check(batch)?;
        step::reject(batch)?;
        let rows = match self.path {
            ForwardPath::Fused => self.threads.in_blocks(batch, BLOCK, |block, _| self.rows(block)),
            ForwardPath::Portable => with_autorelease(|| self.rows(batch)),
        };
        let rows = rows.map_err(errors::to_engine_error)?;
        Ok(match batch.output_kind {
            OutputKind::Pooled => Output::Rows(rows),
            OutputKind::Tokens | OutputKind::Projected | OutputKind::Logits => Output::Tokens(rows),
        })
    }

    fn batch_layout(&self) -> BatchLayout {
        match self.path {
            ForwardPath::Fused => BatchLayout::Packed,
            ForwardPath::Portable => BatchLayout::Padded,
        }
    }

    fn concurrency(&self) -> usize {
        match self.path {
            ForwardPath::Fused => self.threads.count(),
            ForwardPath::Portable => 1,
        }
    }

    fn generator(&self) -> Option<&dyn Generator> {
        self.logits.as_ref().map(|_| self as &dyn Generator)
    }
}

impl CandleEncoder {
    fn rows(&self, batch: &Batch) -> Result<Rows> {
        let hidden = self.transformer.hidden(batch, None)?;
        let width = hidden.dim(1)?;
        match (&self.head, batch.output_kind) {
            (Some(head), OutputKind::Pooled) => pooling::rows(head, &hidden, &batch.sequences),
            (Some(head), OutputKind::Projected) => {
                Ok(head.projected(hidden.flatten_all()?.to_vec1()?, width))
            }
            (_, OutputKind::Tokens | OutputKind::Logits)
            | (None, OutputKind::Pooled | OutputKind::Projected) => {
                Ok(Rows { width, values: hidden.flatten_all()?.to_vec1()?, norms: Vec::new() })
            }
        }
    }
}
