//! Prompts: text before every input of a request.

use sconce_core::card::ModelCard;

use crate::error::Error;
use crate::nearest::nearest;

/// The prompt of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default prompt, if it has one.
    #[default]
    Default,
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
    let name = match prompt {
        Prompt::Text(text) => return Ok(text),
        Prompt::Name(name) => name,
        Prompt::Default => match &card.default_prompt {
            Some(name) => &name.value,
            None => return Ok(""),
        },
    };
    known.get(name).map(String::as_str).ok_or_else(|| unknown(card, name))
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
    fn a_model_without_prompts_says_so() {
        let error = text(&card(&[]), &Prompt::Name("query".to_owned())).expect_err("no prompts").to_string();
        assert!(error.starts_with("the model has no prompts; requested: `query`\nhint: "), "{error}");
    }
}
