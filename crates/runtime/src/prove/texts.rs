//! The built-in texts as tokens: what real weights are tried on.

use sconce_core::batch::{Batch, Rows};
use sconce_core::card::{Format, ModelCard, Task};
use sconce_planner::accuracy::{self, AccuracyReport};
use sconce_planner::cases::{self, CANARIES};

use crate::canary;
use crate::error::Error;
use crate::tokens::Tokens;

/// The most tokens of the text that lengths are cut from.
const LONGEST: usize = 1 << 16;

/// The built-in texts as tokens.
pub(crate) struct Texts {
    /// The texts that are timed.
    pub(super) canary: Batch,
    /// The sample that accuracies are made with, where the model makes one vector of a text, or scores.
    sample: Option<Batch>,
    /// Scores a text, where it gives scores: those of all texts come back as one row.
    scores: Option<usize>,
    /// A long text at many lengths, in batches of two so that padding takes part. For graphs, which have no twin.
    sweep: Vec<Batch>,
}

impl Texts {
    pub(crate) fn of(tokens: &Tokens, card: &ModelCard) -> Result<Texts, Error> {
        let longest = card.max_length.value.min(LONGEST);
        let mut long = CANARIES.join(" ");
        let mut whole = tokens.encode("", &long)?;
        while whole.ids.len() < longest && !whole.is_truncated() {
            long = format!("{long} {long}");
            let before = std::mem::replace(&mut whole, tokens.encode("", &long)?);
            if whole.ids.len() <= before.ids.len() {
                break; // A tokenizer that makes no more tokens of a longer text.
            }
        }
        let cut = |length: usize| {
            // The last token closes a text.
            let mut ids = whole.ids[..length].to_vec();
            if let (Some(end), Some(&last), true) = (ids.last_mut(), whole.ids.last(), length > 1) {
                *end = last;
            }
            ids
        };
        let sweep = cases::sweep(whole.ids.len()).into_iter().map(|lengths| {
            let mut batch = Batch::new(canary::output_kind(card.task.value));
            for length in lengths {
                batch.push(&cut(length), &whole.types[..length], 0);
            }
            batch
        });
        let scores = card.task.value.scores();
        let sampled = scores || card.task.value == Task::Embed;
        Ok(Texts {
            canary: canary::batch(tokens, card, CANARIES)?,
            sample: sampled.then(|| canary::batch(tokens, card, accuracy::sentences())).transpose()?,
            scores: scores.then(|| card.width()),
            sweep: sweep.collect(),
        })
    }

    /// The batches that weights of this format are tried on.
    pub(super) fn batches(&self, format: Format) -> Vec<Batch> {
        let sweep = if format.is_graph() { &self.sweep[..] } else { &[] };
        [&self.canary].into_iter().chain(&self.sample).chain(sweep).cloned().collect()
    }

    /// The accuracy report in the answers to those batches.
    pub(super) fn accuracy(&self, rows: &Rows, reference: &Rows) -> Option<AccuracyReport> {
        let (rows, reference) = (self.of_sample(rows)?, self.of_sample(reference)?);
        match self.scores {
            Some(_) => accuracy::of_scores(&rows, &reference),
            None => accuracy::of_vectors(&rows, &reference),
        }
    }

    fn of_sample(&self, rows: &Rows) -> Option<Rows> {
        let width = self.scores.unwrap_or(rows.width);
        let start = self.canary.sequences.len() * width;
        let end = start + self.sample.as_ref()?.sequences.len() * width;
        Some(Rows { width, values: rows.values.get(start..end)?.to_vec(), norms: Vec::new() })
    }

    /// The norms of whole texts, which a text of a user's resembles: those of the sweep come after them.
    pub(super) fn norms<'a>(&self, rows: &'a Rows) -> &'a [f32] {
        let whole = self.sample.as_ref().map(|sample| self.canary.sequences.len() + sample.sequences.len());
        &rows.norms[..whole.unwrap_or(usize::MAX).min(rows.norms.len())]
    }
}
