//! The output head with its weights, on plain slices, for all engines.

use sconce_core::batch::{Rows, Sequence};
use sconce_core::card::{ModelCard, Pooling};
use sconce_core::files::ModelFiles;
use sconce_core::head::Step;

use crate::head_layers::{HeadLayer, pool};
use crate::normalize::{l2_norms, normalized, probe_pooling};
use crate::weights::{Tensors, WeightsError};

/// The output head with its weights: token layers, pooling, and layers after pooling.
pub(crate) struct LoadedHead {
    tokens: Vec<HeadLayer>,
    pooling: Pooling,
    steps: Vec<HeadLayer>,
    /// Whether outputs are L2-normalized; that last step is not among the layers.
    normalizes: bool,
    /// Whether outputs are scores, whose own norm is meaningless.
    scores: bool,
}

impl LoadedHead {
    /// Loads the card's head, from module files or from the model's `own` tensors.
    pub(crate) fn load(
        card: &ModelCard,
        files: &ModelFiles,
        own: &dyn Tensors,
    ) -> Result<LoadedHead, WeightsError> {
        let hidden = card.sizes.value.hidden;
        let pooled = card.token_width() * card.pooling.value.modes.len();
        let (tokens, steps) = (card.token_steps(), card.steps.value.as_slice());
        Ok(LoadedHead {
            tokens: HeadLayer::load_all(before_normalizing(tokens), hidden, files, own)?,
            pooling: card.pooling.value.clone(),
            steps: HeadLayer::load_all(before_normalizing(steps), pooled, files, own)?,
            normalizes: card.normalizes(),
            scores: card.task.value.scores(),
        })
    }

    /// The head of a twin.
    pub(crate) fn for_probes() -> LoadedHead {
        let (tokens, steps) = (Vec::new(), Vec::new());
        LoadedHead { tokens, pooling: probe_pooling(), steps, normalizes: false, scores: false }
    }

    /// The pooling, if there are no token layers before it.
    pub(crate) fn pooling(&self) -> Option<&Pooling> {
        self.tokens.is_empty().then_some(&self.pooling)
    }

    /// One row per sequence from `hidden`, rows of `width` columns.
    pub(crate) fn rows(&self, hidden: &[f32], width: usize, sequences: &[Sequence]) -> Rows {
        let mut pooled = Vec::new();
        let mut length = 0;
        for sequence in sequences {
            let skip = skipped(&self.pooling, sequence);
            let tokens = &hidden[(sequence.start + skip) * width..(sequence.start + sequence.length) * width];
            let row = match self.tokens.split_last() {
                None => pool(&self.pooling, tokens, width, skip),
                // Pools the vocabulary projection without keeping it: its rows are large.
                Some((HeadLayer::Dense(words), before)) if words.is_monotonic() => {
                    words.largest(&through(before, tokens.to_vec(), width).0)
                }
                Some(_) => {
                    let (tokens, width) = through(&self.tokens, tokens.to_vec(), width);
                    pool(&self.pooling, &tokens, width, skip)
                }
            };
            length = row.len();
            pooled.extend(row);
        }
        self.after_pooling(pooled, length)
    }

    /// The outputs from pooled rows of `width` columns.
    pub(crate) fn after_pooling(&self, pooled: Vec<f32>, width: usize) -> Rows {
        let given = self.scores.then(|| l2_norms(&pooled, width));
        let (values, width) = through(&self.steps, pooled, width);
        let rows = normalized(width, values, self.normalizes);
        match given {
            Some(norms) => Rows { norms, ..rows },
            None => rows,
        }
    }

    /// One row per token from `hidden`, rows of `width` columns.
    pub(crate) fn projected(&self, hidden: Vec<f32>, width: usize) -> Rows {
        let (values, width) = through(&self.tokens, hidden, width);
        normalized(width, values, self.normalizes)
    }
}

/// Leading tokens that pooling skips; never all of them.
pub(crate) fn skipped(pooling: &Pooling, sequence: &Sequence) -> usize {
    if pooling.include_prompt { 0 } else { sequence.skip.min(sequence.length - 1) }
}

fn before_normalizing(steps: &[Step]) -> &[Step] {
    steps.strip_suffix(&[Step::Normalize]).unwrap_or(steps)
}

fn through(layers: &[HeadLayer], rows: Vec<f32>, width: usize) -> (Vec<f32>, usize) {
    layers.iter().fold((rows, width), |(rows, width), layer| layer.apply(rows, width))
}

#[cfg(test)]
mod tests;
