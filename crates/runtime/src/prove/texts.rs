//! Tokenized canary texts, sample sentences and length sweep.

use sconce_core::batch::{Batch, Rows};
use sconce_core::card::{Format, ModelCard, Task};
use sconce_core::probe::Sample;
use sconce_planner::accuracy::{self, AccuracyReport};
use sconce_planner::cases::{self, CANARIES};

use super::canary;
use crate::tokenize::{ModelTokenizer, TokenizerError};

/// Maximum length of the text for the length sweep, in tokens.
const MAX_SWEEP_TOKENS: usize = 1 << 16;

/// Batches that real weights are probed with.
pub(crate) struct CanaryTexts {
    /// The canary texts, which are timed.
    pub(super) canary: Batch,
    /// Sample sentences of the accuracy report, for models that return vectors or scores.
    sample: Option<Batch>,
    /// Number of scores per text. Scores of all texts are judged as one row.
    scores: Option<usize>,
    /// One text at many lengths, in batches of two to test padding. For graphs, which have no twin.
    sweep: Vec<Batch>,
}

impl CanaryTexts {
    pub(crate) fn new(tokenizer: &ModelTokenizer, card: &ModelCard) -> Result<CanaryTexts, TokenizerError> {
        let limit = card.max_length.value.min(MAX_SWEEP_TOKENS);
        let mut long = CANARIES.join(" ");
        let mut whole = tokenizer.encode("", &long)?;
        while whole.ids.len() < limit && !whole.is_truncated() {
            long = format!("{long} {long}");
            let before = std::mem::replace(&mut whole, tokenizer.encode("", &long)?);
            if whole.ids.len() <= before.ids.len() {
                break; // Some tokenizers collapse repeated text.
            }
        }
        let truncated = |length: usize| {
            // Keeps the closing special token.
            let mut ids = whole.ids[..length].to_vec();
            if let (Some(end), Some(&last), true) = (ids.last_mut(), whole.ids.last(), length > 1) {
                *end = last;
            }
            ids
        };
        let sweep = cases::sweep(whole.ids.len()).into_iter().map(|lengths| {
            let mut batch = Batch::new(canary::output_kind(card.task.value));
            for length in lengths {
                batch.push(&truncated(length), &whole.type_ids[..length], 0);
            }
            batch
        });
        let scores = card.task.value.scores();
        let sampled = scores || card.task.value == Task::Embed;
        Ok(CanaryTexts {
            canary: canary::batch(tokenizer, card, CANARIES)?,
            sample: sampled.then(|| canary::batch(tokenizer, card, accuracy::sentences())).transpose()?,
            scores: scores.then(|| card.width()),
            sweep: sweep.collect(),
        })
    }

    /// The batches for weights of this format.
    pub(super) fn batches(&self, format: Format) -> Vec<Batch> {
        let sweep = if format.is_graph() { &self.sweep[..] } else { &[] };
        [&self.canary].into_iter().chain(&self.sample).chain(sweep).cloned().collect()
    }

    /// The accuracy report from the sample of those batches.
    pub(super) fn accuracy(&self, sample: &Sample, reference: &Sample) -> Option<AccuracyReport> {
        if !sample.predictions.is_empty() {
            let texts = self.canary.sequences.len();
            return accuracy::of_predictions(texts, &sample.predictions, &reference.predictions);
        }
        let (rows, reference) = (self.sample_rows(&sample.rows)?, self.sample_rows(&reference.rows)?);
        match self.scores {
            Some(_) => accuracy::of_scores(&rows, &reference),
            None => accuracy::of_vectors(&rows, &reference),
        }
    }

    fn sample_rows(&self, rows: &Rows) -> Option<Rows> {
        let width = self.scores.unwrap_or(rows.width);
        let start = self.canary.sequences.len() * width;
        let end = start + self.sample.as_ref()?.sequences.len() * width;
        Some(Rows { width, values: rows.values.get(start..end)?.to_vec(), norms: Vec::new() })
    }

    /// Norms of complete texts, without those of the length sweep.
    pub(super) fn norms<'a>(&self, rows: &'a Rows) -> &'a [f32] {
        let whole = self.sample.as_ref().map(|sample| self.canary.sequences.len() + sample.sequences.len());
        &rows.norms[..whole.unwrap_or(usize::MAX).min(rows.norms.len())]
    }
}
