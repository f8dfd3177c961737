//! Runs an operation in the library: tokenizes on a thread pool, and computes in batches.

use std::ops::ControlFlow;
use std::sync::Arc;

use rayon::prelude::*;
use sconce_core::batch::{Batch, OutputKind};
use tracing::debug_span;

use super::batching::{MAX_BATCH_TOKENS, batches};
use super::metadata::{OutputMetadata, Truncation, insert};
use super::output::SequenceOutput;
use crate::error::Error;
use crate::execute::Serving;
use crate::tokenize::TokenSequence;

/// Maximum number of values in an engine's output: rows of sparse models have the width of the vocabulary.
const MAX_OUTPUT_VALUES: usize = 16 << 20;

/// Tokenizes all inputs, in parallel if there are several.
pub(crate) fn tokenize<T: Sync>(
    pool: Option<&rayon::ThreadPool>,
    inputs: &[T],
    sequence: impl Fn(&T) -> Result<TokenSequence, Error> + Sync,
) -> Result<Vec<TokenSequence>, Error> {
    let _span = debug_span!("tokenize", texts = inputs.len()).entered();
    match pool {
        Some(pool) if inputs.len() > 1 => pool.install(|| inputs.par_iter().map(&sequence).collect()),
        Some(_) | None => inputs.iter().map(&sequence).collect(),
    }
}

/// Computes all sequences, in batches.
pub(crate) fn run(
    serving: &Serving,
    output_kind: OutputKind,
    sparse: bool,
    sequences: &[TokenSequence],
) -> Result<(Vec<SequenceOutput>, OutputMetadata), Error> {
    let mut outputs = vec![SequenceOutput::Sparse(Vec::new()); sequences.len()];
    let metadata = run_each(serving, output_kind, sequences, |index, values, norm| {
        outputs[index] = SequenceOutput::new(values, norm, sparse);
        ControlFlow::Continue(())
    })?;
    Ok((outputs, metadata))
}

/// Computes all sequences, in batches. `store` gets the index of each sequence, the values of its rows, and the norm of
/// the first one. If it breaks, the other batches are not computed.
pub(crate) fn run_each(
    serving: &Serving,
    output_kind: OutputKind,
    sequences: &[TokenSequence],
    mut store: impl FnMut(usize, &[f32], Option<f32>) -> ControlFlow<()>,
) -> Result<OutputMetadata, Error> {
    let mut metadata = OutputMetadata { class_of: vec![0; sequences.len()], ..OutputMetadata::default() };
    for (index, sequence) in sequences.iter().enumerate() {
        metadata.tokens += sequence.ids.len();
        if sequence.is_truncated() {
            let (tokens, used) = (sequence.full_length, sequence.ids.len());
            metadata.truncated.push(Truncation { index, tokens, used });
        }
    }
    let max_sequences = (MAX_OUTPUT_VALUES / serving.spec().card.width().max(1)).max(1);
    let lengths: Vec<usize> = sequences.iter().map(|sequence| sequence.ids.len()).collect();
    for indices in batches(&lengths, serving.batch_layout(), MAX_BATCH_TOKENS) {
        for indices in indices.chunks(max_sequences) {
            let mut batch = Batch::new(output_kind);
            for &index in indices {
                let TokenSequence { ids, type_ids, prompt_tokens, masked, .. } = &sequences[index];
                batch.push_masked(ids, type_ids, *prompt_tokens, *masked);
            }
            let batch = Arc::new(batch);
            let _span = debug_span!("batch", texts = indices.len(), tokens = batch.tokens()).entered();
            let output = serving.compute(&batch)?;
            let class = insert(&mut metadata.classes, output.class);
            insert(&mut metadata.placements, output.placement);
            for (at, &index) in indices.iter().enumerate() {
                let rows = batch.rows_of(at..at + 1);
                let values =
                    &output.rows.values[rows.start * output.rows.width..rows.end * output.rows.width];
                let norm = output.rows.norms.get(rows.start).copied();
                metadata.class_of[index] = class;
                if store(index, values, norm).is_break() {
                    return Ok(metadata);
                }
            }
        }
    }
    Ok(metadata)
}
