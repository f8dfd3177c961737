//! The lower door, for callers that make batches of their own: text to tokens, tokens to rows, rows to an answer.
//! The upper one, such as [`Model::embed`], takes the same three steps.

use std::sync::Arc;

use sconce_core::batch::{Batch, OutputKind, Rows};
use sconce_core::engine::Cost;
use sconce_core::placement::Placement;
use serde::Serialize;

use crate::canary::output_kind;
use crate::error::Error;
use crate::model::Model;
use crate::prompt::Prompt;
use crate::tokens::{Piece, Tokenized};

/// Rows, where they came from, and what happened on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// The rows, as the batch asked for them.
    pub rows: Rows,
    /// The placement that gave them.
    pub placement: Placement,
    /// Its numerics class.
    pub class: String,
    /// The placements that were taken out of service over this batch.
    pub incidents: Vec<Incident>,
    /// How often the batch was split because memory ran out.
    pub splits: usize,
}

/// A placement was taken out of service while it computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Incident {
    /// Which.
    pub placement: Placement,
    /// What kind of mishap it was.
    pub kind: IncidentKind,
    /// What it did.
    pub why: String,
}

/// What kind of mishap a batch met with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IncidentKind {
    /// The guard saw numbers that can't be an answer.
    Guard,
    /// The engine failed.
    Failed,
    /// It panicked.
    Panicked,
    /// It gave no answer in time.
    Hung,
}

impl IncidentKind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            IncidentKind::Guard => "guard",
            IncidentKind::Failed => "failed",
            IncidentKind::Panicked => "panicked",
            IncidentKind::Hung => "hung",
        }
    }
}

impl Model {
    /// What the model's task asks of an engine.
    pub fn output_kind(&self) -> OutputKind {
        output_kind(self.card().task.value)
    }

    /// What batches cost on the placement that serves now.
    pub fn cost(&self) -> Cost {
        self.serving().cost()
    }

    /// How many batches, each computed by a thread that calls [`compute`](Model::compute), keep that placement busy.
    /// Where it is more than one, another is not kept waiting but computed beside them.
    pub fn concurrency(&self) -> usize {
        self.serving().concurrency()
    }

    /// Computes one batch under the guard: replayed elsewhere where its placement fails, split where memory runs out.
    /// An error where one of its sequences can't be computed; [`compute_each`](Model::compute_each) answers the others.
    pub fn compute(&self, batch: Batch) -> Result<Computed, Error> {
        self.serving().compute(&Arc::new(Model::well_formed(batch)?))
    }

    pub(crate) fn well_formed(batch: Batch) -> Result<Batch, Error> {
        if batch.sequences.is_empty() || !batch.is_well_formed() {
            return Err(Error::Request("the batch is malformed".to_owned()));
        }
        Ok(batch)
    }

    /// Texts as tokens, each after the prompt.
    pub fn encode_texts<T: AsRef<str> + Sync>(
        &self,
        prompt: &Prompt,
        texts: &[T],
    ) -> Result<Vec<Tokenized>, Error> {
        let prompt = self.prompt(prompt)?;
        self.tokenize(texts, |tokens, text| tokens.encode(prompt, text))
    }

    /// A text in pieces that the model takes whole after this prompt, each with its tokens; one where it is short
    /// enough.
    pub fn chunks(&self, prompt: &Prompt, text: &str) -> Result<Vec<(String, usize)>, Error> {
        Ok(self.tokens().chunks(self.prompt(prompt)?, text)?)
    }

    /// Token ids as they are, cut to what the model takes.
    pub fn encode_ids(&self, ids: &[u32]) -> Result<Tokenized, Error> {
        let words = self.card().sizes.value.vocabulary;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= words) {
            return Err(Error::Request(format!("the model has {words} tokens, and none of the id: {id}")));
        }
        if ids.is_empty() {
            return Err(Error::Request("a list of token ids is empty".to_owned()));
        }
        let used = &ids[..ids.len().min(self.card().max_length.value)];
        let (types, whole) = (vec![0; used.len()], ids.len());
        Ok(Tokenized { ids: used.to_vec(), types, skip: 0, unseen: 0, whole })
    }

    /// The tokens of a text with their spelling and their place in it; nothing is cut.
    pub fn pieces(&self, text: &str, special: bool) -> Result<Vec<Piece>, Error> {
        Ok(self.tokens().pieces(text, special)?)
    }

    /// The text that token ids stand for.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        Ok(self.tokens().decode(ids, skip_special)?)
    }
}
