//! The purpose of texts, as embedding APIs name it, selects a prompt of the model.

use sconce::{ModelCard, Prompt};
use sconce_http::refusal::Refusal;

use crate::operations::context::invalid;

/// The prompt for the value of `input_type` (Cohere, Voyage, NVIDIA) or `task` (Jina). A model without a prompt for it has
/// its default prompt.
pub(crate) fn prompt(card: &ModelCard, field: &str, value: &str) -> Result<Prompt, Refusal> {
    match value {
        "query" | "search_query" | "retrieval.query" => Ok(Prompt::Query),
        "document" | "passage" | "search_document" | "retrieval.passage" => Ok(Prompt::Document),
        "classification" | "clustering" | "separation" | "text-matching" => {
            let mut names = card.prompts.value.keys();
            Ok(names.find(|name| name.eq_ignore_ascii_case(value)).cloned().into())
        }
        _ => Err(invalid(format!(
            "unknown `{field}`: `{value}`; known: `query`, `document`, `passage`, `search_query`, `search_document`, \
             `retrieval.query`, `retrieval.passage`, `text-matching`, `separation`, `classification`, `clustering`"
        ))),
    }
}

/// The prompt of a request that may name a prompt, an `input_type` or a `task`, but only one of them.
pub(crate) fn chosen(
    card: &ModelCard,
    prompt_name: Option<String>,
    input_type: Option<&str>,
    task: Option<&str>,
) -> Result<Prompt, Refusal> {
    match (prompt_name, input_type, task) {
        (name, None, None) => Ok(name.into()),
        (None, Some(value), None) => prompt(card, "input_type", value),
        (None, None, Some(value)) => prompt(card, "task", value),
        (_, _, _) => Err(invalid("`prompt_name`, `input_type` and `task` are mutually exclusive")),
    }
}
