//! What the steps of all engines share: the size of cache blocks, and the validation of a step.

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::engine::EngineError;

use crate::description::Description;

/// Tokens per cache block.
pub(crate) const BLOCK_SIZE: usize = 16;

/// Checks that `batch` is a step of the model, and that its block tables cover its tokens in a cache of `blocks` blocks.
pub(crate) fn check(d: &Description, batch: &Batch, blocks: usize) -> Result<(), EngineError> {
    d.check(batch)?;
    let covered = batch.cached.iter().zip(&batch.sequences).all(|(cached, sequence)| {
        cached.blocks.len() * BLOCK_SIZE >= cached.length + sequence.length
            && cached.blocks.iter().all(|&block| (block as usize) < blocks)
    });
    if batch.output_kind != OutputKind::Logits || !covered {
        return Err(EngineError::Malformed("a step whose block tables do not cover its tokens".to_owned()));
    }
    Ok(())
}

/// Rejects a step where a stateless batch is expected.
pub(crate) fn reject(batch: &Batch) -> Result<(), EngineError> {
    if batch.output_kind == OutputKind::Logits || !batch.cached.is_empty() {
        return Err(EngineError::Malformed("a step, which only a generator computes".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod testing;
