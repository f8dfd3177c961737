//! What operations read of a model, and their inputs.

use sconce_core::batch::OutputKind;
use sconce_core::card::{ModelCard, Task};

use super::prompt::{self, Prompt};
use crate::error::Error;
use crate::prove::canary;
use crate::tokenize::{ModelTokenizer, TokenSequence};

/// The parts of a model that operations read.
#[derive(Clone, Copy)]
pub struct ModelContext<'a> {
    /// The card.
    pub card: &'a ModelCard,
    /// The tokenizer.
    pub tokenizer: &'a ModelTokenizer,
}

/// An input of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// A text, encoded after the prompt.
    Text(&'a str),
    /// Token ids of the model's tokenizer, used without prompt and special tokens.
    Ids(&'a [u32]),
}

impl ModelContext<'_> {
    /// The engine output that the model's task needs.
    pub fn output_kind(self) -> OutputKind {
        canary::output_kind(self.card.task.value)
    }

    /// Whether rows are sparse: most of their values are zero.
    pub fn is_sparse(self) -> bool {
        self.card.task.value == Task::Sparse
    }

    /// The sequence of an input after `prompt`, truncated to `max_length`.
    pub(super) fn encode(self, prompt: &Prompt, input: Input<'_>) -> Result<TokenSequence, Error> {
        match input {
            Input::Text(text) => Ok(self.tokenizer.encode(prompt::text(self.card, prompt)?, text)?),
            Input::Ids(ids) => {
                let vocabulary = self.card.sizes.value.vocabulary;
                if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
                    return Err(Error::Request(format!(
                        "the model has {vocabulary} tokens, and none of the id: {id}"
                    )));
                }
                if ids.is_empty() {
                    return Err(Error::Request("a list of token ids is empty".to_owned()));
                }
                Ok(self.tokenizer.sequence_of_ids(ids))
            }
        }
    }
}

/// The task of the model, if it is one of `tasks`.
pub(crate) fn expect_task(card: &ModelCard, operation: &'static str, tasks: &[Task]) -> Result<Task, Error> {
    let task = &card.task;
    if tasks.contains(&task.value) {
        return Ok(task.value);
    }
    Err(Error::WrongTask { asked: operation, has: task.value, by: quoted(&task.source) })
}

/// A file or flag in backticks; other text as it is.
fn quoted(by: &str) -> String {
    if by.contains(['.', '-']) && !by.contains(' ') { format!("`{by}`") } else { by.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_files_are_literals() {
        for (by, expected) in [
            ("config.json", "`config.json`"),
            ("--task", "`--task`"),
            ("its labels", "its labels"),
            ("guessed", "guessed"),
            ("two files: a.json", "two files: a.json"),
        ] {
            assert_eq!(quoted(by), expected);
        }
    }
}
