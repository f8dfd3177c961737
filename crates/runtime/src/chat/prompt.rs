//! From a conversation to the token ids of a prompt.

use std::collections::BTreeMap;
use std::time::SystemTime;

use sconce_core::card::ModelCard;
use serde_json::{Map, Value};

use super::message::Message;
use crate::error::Error;
use crate::template::{Rendered, TemplateError, Variable, render};
use crate::tokenize::ModelTokenizer;

/// Options of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatOptions {
    /// Definitions of tools that the model can call, as in OpenAI's API.
    pub tools: Option<Vec<Value>>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// Name of the template. By default `tool_use` with tools, if there is one, else `default`.
    pub template: Option<String>,
    /// Whether the prompt ends with the start of the model's turn.
    pub add_generation_prompt: bool,
    /// The time that templates see, in UTC. By default the current one.
    pub now: Option<SystemTime>,
}

impl Default for ChatOptions {
    fn default() -> ChatOptions {
        let variables = Map::new();
        ChatOptions { tools: None, variables, template: None, add_generation_prompt: true, now: None }
    }
}

/// The prompt of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The rendered template, as transformers renders it.
    pub text: String,
    /// Its token ids. Control tokens come from the template alone: the same text in a message is plain text.
    pub ids: Vec<u32>,
    /// Tokens that end the answer, beside the end tokens of the model.
    pub stop_tokens: Vec<u32>,
}

/// The prompt of a conversation.
pub(crate) fn prompt(
    card: &ModelCard,
    tokenizer: &ModelTokenizer,
    messages: &[Message],
    options: &ChatOptions,
) -> Result<ChatPrompt, Error> {
    let template = template(card, options)?;
    let tokens = card.generation.special_tokens.as_ref().map(|tokens| &tokens.value);
    let rendered = render_chat(template, tokens.unwrap_or(&BTreeMap::new()), messages, options)?;
    let ids = tokenizer.encode_prompt(&rendered.text, &rendered.caller, template)?;
    // A turn ends with the tokenizer's end token, which other files may not name.
    let end = tokens.and_then(|tokens| tokenizer.id(tokens.get("eos_token")?));
    Ok(ChatPrompt { text: rendered.text, ids, stop_tokens: end.into_iter().collect() })
}

/// The template that the options choose.
pub(crate) fn template<'a>(card: &'a ModelCard, options: &ChatOptions) -> Result<&'a str, TemplateError> {
    let templates = card.generation.chat_templates.as_ref().ok_or(TemplateError::Missing)?;
    choose(&templates.value, options)
}

fn choose<'a>(
    templates: &'a BTreeMap<String, String>,
    options: &ChatOptions,
) -> Result<&'a str, TemplateError> {
    let named = options.template.as_deref();
    let with_tools = || options.tools.is_some() && templates.contains_key("tool_use");
    let name = named.unwrap_or_else(|| if with_tools() { "tool_use" } else { "default" });
    let unknown =
        || TemplateError::Unknown { name: name.to_owned(), known: templates.keys().cloned().collect() };
    templates.get(name).map(String::as_str).ok_or_else(unknown)
}

/// Renders a conversation with the variables that transformers passes to a template.
fn render_chat(
    template: &str,
    tokens: &BTreeMap<String, String>,
    messages: &[Message],
    options: &ChatOptions,
) -> Result<Rendered, Error> {
    if messages.is_empty() {
        return Err(Error::Request(
            "the conversation is empty: a chat needs at least one message".to_owned(),
        ));
    }
    let messages = messages.iter().map(Message::to_template).collect();
    let tools = options.tools.clone().map_or(Value::Null, Value::Array);
    let of_caller = [("messages", Value::Array(messages)), ("tools", tools), ("documents", Value::Null)];
    let generation = Value::Bool(options.add_generation_prompt);
    let tokens: Vec<(&str, Value)> =
        tokens.iter().map(|(name, token)| (name.as_str(), Value::String(token.clone()))).collect();
    let variable = |of_caller: bool| move |(name, value)| Variable { name, value, of_caller };
    let mut variables: Vec<Variable<'_>> = Vec::new();
    variables.extend(tokens.iter().map(|(name, value)| (*name, value)).map(variable(false)));
    variables.extend(of_caller.iter().map(|(name, value)| (*name, value)).map(variable(true)));
    variables.push(variable(false)(("add_generation_prompt", &generation)));
    // The variables of the caller come last: they replace the others.
    variables
        .extend(options.variables.iter().map(|(name, value)| (name.as_str(), value)).map(variable(true)));
    Ok(render(template, &variables, options.now.unwrap_or_else(SystemTime::now))?)
}

#[cfg(test)]
mod tests;
