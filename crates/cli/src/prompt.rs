//! Selects the prompt from the flags `--prompt`, `--prefix`, `--as` and `--query`.

use anyhow::bail;
use sconce::{ModelCard, Prompt};

use crate::arguments::PromptArguments;

/// How to choose a prompt for `embed`.
pub(crate) const HINT: &str =
    "hint: add `--as query` or `--as document`; `--prefix \"\"` embeds texts as they are";

impl PromptArguments {
    /// The prompt of `--prompt` or `--prefix`.
    pub(crate) fn prompt(&self) -> Prompt {
        match &self.prefix {
            Some(text) => Prompt::Text(text.clone()),
            None => self.prompt.clone().into(),
        }
    }
}

/// The query prompt. Prints a note if the model has no prompts and embeds queries like other texts.
pub(crate) fn for_queries(card: &ModelCard) -> anyhow::Result<Prompt> {
    let known = &card.prompts.value;
    match card.query_prompt() {
        Some(name) => {
            if known.get(name).is_some_and(String::is_empty) {
                eprintln!("note: the model's query prompt is empty: it embeds queries like other texts");
            }
            Ok(Prompt::Name(name.to_owned()))
        }
        None if known.is_empty() => {
            eprintln!("note: the model has no query prompt: it embeds queries like other texts");
            Ok(Prompt::Default)
        }
        None => {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            bail!(
                "the model has no query prompt; its prompts: `{}`\n\
                 hint: choose one with `--prompt NAME`, or disable prompts with `--prefix \"\"`",
                names.join("`, `")
            )
        }
    }
}

/// The document prompt, or the model's default prompt.
pub(crate) fn for_documents(card: &ModelCard) -> Prompt {
    card.document_prompt().map(str::to_owned).into()
}
