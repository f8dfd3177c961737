//! Prompts: text before every input of a request.

use sconce_core::card::{ModelCard, Task};

use crate::error::Error;
use crate::nearest::nearest;

/// The prompt of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default prompt, if it has one.
    #[default]
    Default,
    /// The model's prompt for search queries; its default prompt, if it has none for queries.
    Query,
    /// The model's prompt for documents that are searched; its default prompt, if it has none for documents.
    Document,
    /// The model's prompt of this name. An unknown name is an error.
    Name(String),
    /// This text, taken literally.
    Text(String),
}

impl Prompt {
    /// No prompt, not even the model's default.
    pub const NONE: Prompt = Prompt::Text(String::new());
}

/// A name, or the model's default prompt.
impl From<Option<String>> for Prompt {
    fn from(name: Option<String>) -> Prompt {
        name.map_or(Prompt::Default, Prompt::Name)
    }
}

/// The text of a prompt.
pub(super) fn text<'a>(card: &'a ModelCard, prompt: &'a Prompt) -> Result<&'a str, Error> {
    let known = &card.prompts.value;
    let default = || card.default_prompt.as_ref().map(|name| name.value.as_str());
    let name = match prompt {
        Prompt::Text(text) => return Ok(text),
        Prompt::Name(name) => Some(name.as_str()),
        Prompt::Query => card.query_prompt().or_else(default),
        Prompt::Document => card.document_prompt().or_else(default),
        Prompt::Default => default(),
    };
    let Some(name) = name else { return Ok("") };
    known.get(name).map(String::as_str).ok_or_else(|| unknown(card, name))
}

/// A warning, if the model needs a prompt for queries and another one for documents, and `prompt` selects none. `None` if a
/// text begins with a prompt: the caller wrote it.
pub fn missing_prompt<'a>(
    card: &ModelCard,
    prompt: &Prompt,
    texts: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    if *prompt != Prompt::Default || card.task.value != Task::Embed || card.default_prompt.is_some() {
        return None;
    }
    let text = |name: Option<&str>| card.prompts.value.get(name?).filter(|text| !text.is_empty());
    let (query, document) = (text(card.query_prompt())?, text(card.document_prompt())?);
    let prompts = || card.prompts.value.values().map(|prompt| prompt.trim_end());
    let is_written = |text: &str| prompts().any(|prompt| !prompt.is_empty() && text.starts_with(prompt));
    if texts.into_iter().any(is_written) {
        return None;
    }
    Some(format!(
        "no prompt: `{}` expects {query:?} before queries and {document:?} before documents",
        card.name
    ))
}

fn unknown(card: &ModelCard, name: &str) -> Error {
    let names: Vec<&str> = card.prompts.value.keys().map(String::as_str).collect();
    let literal = "`--prefix TEXT` puts literal text before every text";
    Error::Request(if names.is_empty() {
        format!("the model has no prompts; requested: `{name}`\nhint: {literal}")
    } else {
        let meant = nearest(name, names.iter().copied());
        let meant = meant.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
        format!("the model has no prompt `{name}`; it has: `{}`\nhint: {meant}{literal}", names.join("`, `"))
    })
}

#[cfg(test)]
mod tests {
    use sconce_core::sourced::Sourced;

    use super::*;

    fn card(prompts: &[(&str, &str)]) -> ModelCard {
        let mut card = crate::card::sample().card;
        let prompts = prompts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        card.prompts = Sourced::new(prompts.collect(), "test");
        card
    }

    #[test]
    fn a_name_must_be_one_of_the_models_and_a_text_is_taken_literally() {
        let card = card(&[("query", "query: "), ("passage", "passage: ")]);
        let text =
            |prompt: &Prompt| super::text(&card, prompt).map(str::to_owned).map_err(|it| it.to_string());
        assert_eq!(text(&Prompt::Name("query".to_owned())), Ok("query: ".to_owned()));
        assert_eq!(text(&Prompt::Text("query".to_owned())), Ok("query".to_owned()));
        assert_eq!((text(&Prompt::Default), text(&Prompt::NONE)), (Ok(String::new()), Ok(String::new())));
        let error = text(&Prompt::Name("qeury".to_owned())).expect_err("no such prompt");
        for part in ["no prompt `qeury`", "it has: `passage`, `query`", "hint: did you mean `query`?"] {
            assert!(error.contains(part), "no `{part}` in: {error}");
        }
        let error = text(&Prompt::Name("search_document: ".to_owned())).expect_err("no such prompt");
        assert!(error.contains("--prefix TEXT"), "{error}");
    }

    #[test]
    fn the_prompts_of_queries_and_documents_are_known_by_the_names_that_models_give_them() {
        for name in
            ["query", "search_query", "s2p_query", "retrieval.query", "Retrieval-query", "web_search_query"]
        {
            let card = card(&[(name, "q: "), ("clustering", "c: "), ("sts_query", "s: ")]);
            assert_eq!((card.query_prompt(), card.document_prompt()), (Some(name), None));
        }
        for name in ["document", "passage", "search_document", "retrieval.passage"] {
            let card = card(&[(name, "d: "), ("clustering", "c: ")]);
            assert_eq!((card.query_prompt(), card.document_prompt()), (None, Some(name)));
        }
        let both = card(&[("s2p_query", "a"), ("query", "b")]);
        assert_eq!(both.query_prompt(), Some("query"));
    }

    #[test]
    fn queries_and_documents_have_the_prompts_of_the_model_or_its_default() {
        let texts = |card: &ModelCard| {
            [Prompt::Query, Prompt::Document].map(|prompt| text(card, &prompt).expect("a prompt").to_owned())
        };
        assert_eq!(texts(&card(&[("query", "q: "), ("passage", "p: ")])), ["q: ", "p: "]);
        assert_eq!(texts(&card(&[("query", "q: "), ("document", "")])), ["q: ", ""]);
        assert_eq!(texts(&card(&[])), ["", ""]);
        let mut with_default = card(&[("other", "o: ")]);
        with_default.default_prompt = Some(Sourced::new("other".to_owned(), "test"));
        assert_eq!(texts(&with_default), ["o: ", "o: "]);
    }

    #[test]
    fn a_missing_prompt_is_noticed_where_both_sides_need_one() {
        let both = card(&[("query", "query: "), ("passage", "passage: ")]);
        let warning = missing_prompt(&both, &Prompt::Default, ["a text"]).expect("a warning");
        for part in ["no prompt: `", "\"query: \" before queries", "\"passage: \" before documents"] {
            assert!(warning.contains(part), "no `{part}` in: {warning}");
        }
        for prompt in [Prompt::Query, Prompt::NONE, Prompt::Name("query".to_owned())] {
            assert_eq!(missing_prompt(&both, &prompt, ["a text"]), None, "{prompt:?}");
        }
        assert_eq!(missing_prompt(&both, &Prompt::Default, ["query: a text"]), None, "it is written");
        let one = card(&[("query", "query: "), ("document", "")]);
        assert_eq!(missing_prompt(&one, &Prompt::Default, ["a text"]), None, "documents need none");
        assert_eq!(missing_prompt(&card(&[]), &Prompt::Default, ["a text"]), None);
    }

    #[test]
    fn a_model_without_prompts_says_so() {
        let error = text(&card(&[]), &Prompt::Name("query".to_owned())).expect_err("no prompts").to_string();
        assert!(error.starts_with("the model has no prompts; requested: `query`\nhint: "), "{error}");
    }
}
