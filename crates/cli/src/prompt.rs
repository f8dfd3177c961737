//! Which prompt goes before texts, by the flags `--prompt`, `--prefix` and `--query`.

use anyhow::bail;
use sconce::{ModelCard, Prompt};

use crate::arguments::PromptArguments;

impl PromptArguments {
    /// The prompt that was asked for.
    pub(crate) fn prompt(&self) -> Prompt {
        match &self.prefix {
            Some(text) => Prompt::Text(text.clone()),
            None => self.prompt.clone().into(),
        }
    }
}

/// The prompt of search queries. A model without prompts embeds queries like other texts, and that is said.
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
                 hint: choose one with `--prompt NAME`, or none with `--prefix \"\"`",
                names.join("`, `")
            )
        }
    }
}

/// The prompt of documents that are searched: the model's own, else its default.
pub(crate) fn for_documents(card: &ModelCard) -> Prompt {
    card.document_prompt().map(str::to_owned).into()
}
