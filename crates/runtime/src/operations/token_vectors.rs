//! Token vectors of any model: projected rows of a late-interaction model, or hidden states of an embedding model.

use sconce_core::batch::OutputKind;
use sconce_core::card::{ModelCard, Task};

use super::context::{Input, ModelContext, expect_task};
use super::late_interaction;
use super::output::SequenceOutput;
use super::prompt::Prompt;
use crate::error::Error;
use crate::tokenize::TokenSequence;

/// Checks that the model has token vectors. Returns the engine output to request.
pub fn check(card: &ModelCard, prompt: &Prompt) -> Result<OutputKind, Error> {
    match expect_task(card, "embed_all", &[Task::Embed, Task::Tokens])? {
        Task::Tokens if *prompt != Prompt::Default => Err(late_interaction::no_prompts()),
        Task::Tokens => Ok(OutputKind::Projected),
        Task::Embed | Task::Rerank | Task::Classify | Task::Sparse | Task::Generate => Ok(OutputKind::Tokens),
    }
}

/// The sequence of an input. Late-interaction models encode texts as documents, and reject token ids.
pub fn sequence(model: ModelContext<'_>, prompt: &Prompt, input: Input<'_>) -> Result<TokenSequence, Error> {
    match (model.card.task.value, input) {
        (Task::Tokens, Input::Text(text)) => late_interaction::document_sequence(model, text),
        (Task::Tokens, Input::Ids(_)) => {
            Err(Error::Request("a late-interaction model takes texts, not token ids".to_owned()))
        }
        (Task::Embed | Task::Rerank | Task::Classify | Task::Sparse | Task::Generate, input) => {
            model.encode(prompt, input)
        }
    }
}

/// The token vectors of one sequence, a row per token.
pub fn rows(model: ModelContext<'_>, sequence: &TokenSequence, output: &SequenceOutput) -> Vec<Vec<f32>> {
    let values = output.values();
    if model.card.task.value == Task::Tokens {
        let matrix = late_interaction::document_matrix(model, sequence, values);
        return matrix.rows().map(<[f32]>::to_vec).collect();
    }
    values.chunks_exact(model.card.sizes.value.hidden.max(1)).map(<[f32]>::to_vec).collect()
}
