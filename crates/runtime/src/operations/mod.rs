//! Operations on a model: embed, rerank, classify, similarity, sparse and token vectors.
//!
//! Each operation has three pure parts:
//!
//! 1. `check` validates the options against the model card.
//! 2. `sequence` turns one input into a [`TokenSequence`](crate::tokenize::TokenSequence). Inputs are independent: a
//!    caller may tokenize them in pieces, on any thread.
//! 3. A function from [`SequenceOutput`]s to the answer, such as [`embed::vectors`] or [`rerank::ranking`].
//!
//! Between 2 and 3 the sequences are computed. [`Model`](crate::Model) batches them itself. A server with its own queue
//! computes them with [`Model::compute_each`](crate::Model::compute_each), and stores the rows of each sequence, as soon as
//! a batch is done, with [`SequenceOutput::new`]: rows of sparse models shrink to their nonzero weights at once. Both get
//! the [`ModelContext`] of these functions from [`Model::context`](crate::Model::context).
//!
//! A request of such a server, here an embedding:
//!
//! ```no_run
//! # use sconce::operations::{Input, SequenceOutput, embed};
//! # fn queue(sequences: &[sconce::tokenize::TokenSequence]) -> Vec<SequenceOutput> { Vec::new() }
//! # fn request(model: &sconce::Model, texts: &[String]) -> Result<Vec<Vec<f32>>, sconce::Error> {
//! let options = sconce::EmbedOptions { dimensions: Some(256), ..Default::default() };
//! let context = model.context();
//! embed::check(context.card, &options)?;
//! let sequence = |text: &String| embed::sequence(context, &options.prompt, Input::Text(text));
//! let sequences = texts.iter().map(sequence).collect::<Result<Vec<_>, _>>()?;
//! let outputs = queue(&sequences); // computed with `context.output_kind()`
//! # let vectors =
//! embed::vectors(context.card, outputs, &options)
//! # ; Ok(vectors) }
//! ```
//!
//! Estimates for a memory budget: [`SequenceOutput::json_bytes`], [`classify::json_bytes`],
//! [`late_interaction::scoring_bytes`].

mod batching;
pub mod chunk;
pub mod classify;
mod context;
pub mod embed;
mod embeddings;
pub mod late_interaction;
mod metadata;
mod output;
mod prompt;
pub mod rerank;
mod run;
mod scoring;
pub mod similarity;
pub mod sparse;
pub mod token_vectors;
mod token_weight;

pub(crate) use context::expect_task;
pub use context::{Input, ModelContext};
pub use embeddings::Embeddings;
pub use metadata::{OutputMetadata, Truncation};
pub use output::SequenceOutput;
pub use prompt::{Prompt, missing_prompt};
pub(crate) use run::{run, run_each, tokenize};
pub use scoring::activate;
