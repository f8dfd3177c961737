//! What the steps of all engines share: the output matrix, the size of cache blocks, and the validation of a step.

use std::ops::Range;

use sconce_core::batch::{Batch, OutputKind};
use sconce_core::card::ModelCard;
use sconce_core::engine::EngineError;

use crate::description::Description;
use crate::families;
use crate::weights::{Tensors, WeightsError};

/// The names of the output matrix of decoders on the hub.
const OUTPUT_MATRICES: [&str; 2] = ["lm_head.weight", "embed_out.weight"];

/// Tokens per cache block.
pub(crate) const BLOCK_SIZE: usize = sconce_kernels::paged::BLOCK_SIZE;

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

/// Tokens of sequences: the index of each, and tokens of it.
pub(crate) type SomeTokens = Vec<(usize, Range<usize>)>;

/// The prompt tokens and the generated tokens of a step.
pub(crate) fn by_kind(batch: &Batch) -> [SomeTokens; 2] {
    let mut kinds = [Vec::new(), Vec::new()];
    for (index, (sequence, cached)) in batch.sequences.iter().zip(&batch.cached).enumerate() {
        let prompt = cached.prompt.saturating_sub(cached.length).min(sequence.length);
        for (kind, tokens) in kinds.iter_mut().zip([0..prompt, prompt..sequence.length]) {
            kind.extend(Some((index, tokens)).filter(|(_, tokens)| !tokens.is_empty()));
        }
    }
    kinds
}

/// The tokens of a step in parts of at most `size` tokens.
pub(crate) fn in_parts(batch: &Batch, size: usize) -> Vec<SomeTokens> {
    let (mut parts, mut part, mut left) = (Vec::new(), Vec::new(), size);
    for (index, sequence) in batch.sequences.iter().enumerate() {
        let mut first = 0;
        while first < sequence.length {
            let count = left.min(sequence.length - first);
            part.push((index, first..first + count));
            (first, left) = (first + count, left - count);
            if left == 0 {
                parts.push(std::mem::take(&mut part));
                left = size;
            }
        }
    }
    parts.extend(Some(part).filter(|part| !part.is_empty()));
    parts
}

/// Rejects checkpoints that lack their own output matrix: the token embeddings in its place would give wrong logits.
pub(crate) fn check_output_matrix(card: &ModelCard, tensors: &dyn Tensors) -> Result<(), WeightsError> {
    let untied = families::root(&card.config)["tie_word_embeddings"] == false;
    match output_matrix(tensors) {
        None if untied => Err(WeightsError::Missing(OUTPUT_MATRICES[0].to_owned())),
        Some(_) | None => Ok(()),
    }
}

/// The name of the output matrix, if the checkpoint has one. Models with several parts put a prefix before it.
pub(crate) fn output_matrix(tensors: &dyn Tensors) -> Option<String> {
    if let Some(name) = OUTPUT_MATRICES.into_iter().find(|name| tensors.shape(name).is_some()) {
        return Some(name.to_owned());
    }
    let is_prefixed = |name: &String| {
        OUTPUT_MATRICES.iter().any(|end| name.strip_suffix(end).is_some_and(|prefix| prefix.ends_with('.')))
    };
    tensors.names().into_iter().find(is_prefixed)
}

/// Completes logits, products with the output matrix: adds its bias, if it is not empty, and applies the softcap.
pub(crate) fn finish_logits(d: &Description, bias: &[f32], logits: &mut [f32]) {
    if !bias.is_empty() {
        for row in logits.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit += bias);
        }
    }
    if let Some(cap) = d.logit_softcap.map(|cap| cap as f32) {
        for logit in logits {
            *logit = cap * (*logit / cap).tanh();
        }
    }
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
