//! Conversations and tools of Anthropic's API as chat templates read them.

use std::collections::BTreeMap;

use sconce::{ChatOptions, Message};
use sconce_http::refusal::Refusal;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::operations::context::invalid;
use crate::operations::tools::{ToolChoice, Tools};

/// A message.
#[derive(Deserialize, ToSchema)]
pub(crate) struct Turn {
    /// `user` or `assistant`.
    role: String,
    /// A text, or a list of blocks: `text`, `tool_use`, `tool_result`, `thinking`.
    #[schema(value_type = Object)]
    content: Value,
}

/// A tool that the model may call.
#[derive(Deserialize, ToSchema)]
pub(crate) struct Tool {
    /// `custom`, which is the default. Tools that the server runs are not supported.
    r#type: Option<String>,
    #[serde(default)]
    name: String,
    description: Option<String>,
    /// JSON schema of the input.
    #[schema(value_type = Option<Object>)]
    input_schema: Option<Value>,
}

/// Whether the model calls tools.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToolChoiceField {
    Auto {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Any {
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    Tool {
        name: String,
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    None,
}

/// Whether the model reasons before it answers.
#[derive(Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Thinking {
    Enabled {},
    Adaptive {},
    Disabled {},
}

/// The options of a conversation. Without `thinking`, the model answers at once.
pub(super) fn chat_options(thinking: Option<&Thinking>) -> ChatOptions {
    let thinks = matches!(thinking, Some(Thinking::Enabled {} | Thinking::Adaptive {}));
    let variables = Map::from_iter([("enable_thinking".to_owned(), thinks.into())]);
    ChatOptions { variables, ..ChatOptions::default() }
}

/// The tools of a request.
pub(super) fn tools(tools: Vec<Tool>, choice: Option<ToolChoiceField>) -> Result<Tools, Refusal> {
    let (choice, is_single) = match choice {
        None => (ToolChoice::Auto, false),
        Some(ToolChoiceField::None) => (ToolChoice::None, false),
        Some(ToolChoiceField::Auto { disable_parallel_tool_use }) => {
            (ToolChoice::Auto, disable_parallel_tool_use)
        }
        Some(ToolChoiceField::Any { disable_parallel_tool_use }) => {
            (ToolChoice::Required, disable_parallel_tool_use)
        }
        Some(ToolChoiceField::Tool { name, disable_parallel_tool_use }) => {
            (ToolChoice::Named(name), disable_parallel_tool_use)
        }
    };
    let mut definitions = Vec::with_capacity(tools.len());
    for (at, Tool { r#type, name, description, input_schema }) in tools.into_iter().enumerate() {
        if let Some(kind) = r#type.filter(|kind| kind != "custom") {
            return Err(invalid(format!("tool {at} has the type `{kind}`, and only `custom` is supported")));
        }
        let mut function = json!({ "name": name });
        if let Some(description) = description {
            function["description"] = description.into();
        }
        if let Some(schema) = input_schema {
            function["parameters"] = schema;
        }
        definitions.push(json!({ "type": "function", "function": function }));
    }
    Tools::new(definitions, choice, !is_single)
}

/// The messages of a request.
pub(super) fn messages(system: Option<Value>, turns: Vec<Turn>) -> Result<Vec<Message>, Refusal> {
    if turns.is_empty() {
        return Err(invalid("`messages` is empty"));
    }
    if turns.last().is_some_and(|turn| turn.role == "assistant") {
        return Err(invalid("the last message is from the assistant: continuing it is not supported"));
    }
    let mut messages = Vec::with_capacity(turns.len() + 1);
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let text = text(system, "`system`")?;
        messages.extend((!text.is_empty()).then(|| Message::system(text)));
    }
    // Names of tools by the id of their call.
    let mut names = BTreeMap::new();
    for (at, Turn { role, content }) in turns.into_iter().enumerate() {
        let place = format!("message {at}");
        let blocks = blocks(content, &place)?;
        match role.as_str() {
            "user" => user(blocks, &place, &names, &mut messages)?,
            "assistant" => messages.push(assistant(blocks, &place, &mut names)?),
            _ => return Err(invalid(format!("{place} has the role `{role}`, not `user` or `assistant`"))),
        }
    }
    Ok(messages)
}

/// The blocks of a content.
fn blocks(content: Value, place: &str) -> Result<Vec<Value>, Refusal> {
    match content {
        Value::String(text) => Ok(vec![json!({ "type": "text", "text": text })]),
        Value::Array(blocks) => Ok(blocks),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(invalid(format!("{place} has neither a text nor a list of blocks")))
        }
    }
}

fn unsupported(block: &Value, place: &str) -> Refusal {
    let kind = block["type"].as_str().unwrap_or("?");
    invalid(format!("{place} has a block of type `{kind}`, which is not supported there"))
}

/// The text of a content that is only text.
fn text(content: Value, place: &str) -> Result<String, Refusal> {
    let mut texts = Vec::new();
    for block in blocks(content, place)? {
        match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(text)) => texts.push(text.to_owned()),
            _ => return Err(unsupported(&block, place)),
        }
    }
    Ok(texts.join("\n"))
}

/// Adds the results of tools, then the text of the user.
fn user(
    blocks: Vec<Value>,
    place: &str,
    names: &BTreeMap<String, String>,
    messages: &mut Vec<Message>,
) -> Result<(), Refusal> {
    let (mut texts, mut has_results) = (Vec::new(), false);
    for mut block in blocks {
        match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(text)) => texts.push(text.to_owned()),
            (Some("tool_result"), _) => {
                has_results = true;
                let content = block["content"].take();
                let content = if content.is_null() { String::new() } else { text(content, place)? };
                let mut message = Message::new("tool", content);
                if let Some(id) = block["tool_use_id"].as_str() {
                    message.0.insert("tool_call_id".to_owned(), id.into());
                    let name = names.get(id).map(|name| ("name".to_owned(), name.as_str().into()));
                    message.0.extend(name);
                }
                messages.push(message);
            }
            _ => return Err(unsupported(&block, place)),
        }
    }
    if !texts.is_empty() || !has_results {
        messages.push(Message::user(texts.join("\n")));
    }
    Ok(())
}

fn assistant(
    blocks: Vec<Value>,
    place: &str,
    names: &mut BTreeMap<String, String>,
) -> Result<Message, Refusal> {
    let (mut texts, mut reasoning, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for mut block in blocks {
        match (block["type"].as_str(), block["text"].as_str(), block["thinking"].as_str()) {
            (Some("text"), Some(text), _) => texts.push(text.to_owned()),
            (Some("thinking"), _, Some(text)) => reasoning.push(text.to_owned()),
            (Some("redacted_thinking"), ..) => {}
            (Some("tool_use"), ..) => {
                let (Some(id), Some(name)) = (block["id"].as_str(), block["name"].as_str()) else {
                    return Err(invalid(format!("{place} has a `tool_use` without `id` or `name`")));
                };
                let (id, name) = (id.to_owned(), name.to_owned());
                let function = json!({ "name": name, "arguments": block["input"].take() });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
                names.insert(id, name);
            }
            _ => return Err(unsupported(&block, place)),
        }
    }
    let mut message = Message::assistant(texts.join("\n"));
    if !reasoning.is_empty() {
        message.0.insert("reasoning_content".to_owned(), reasoning.join("\n").into());
    }
    if !calls.is_empty() {
        message.0.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(system: Value, turns: Value) -> Result<Value, String> {
        let turns: Vec<Turn> = serde_json::from_value(turns).map_err(|error| error.to_string())?;
        let messages = messages(Some(system), turns).map_err(|refusal| refusal.message)?;
        serde_json::to_value(messages).map_err(|error| error.to_string())
    }

    #[test]
    fn blocks_become_messages_with_calls_and_results() {
        let turns = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "I call."},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "text", "text": "go on"},
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "3"}]},
            ]},
        ]);
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}});
        let expected = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "I call.", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "1", "name": "f"},
            {"role": "user", "content": "go on"},
        ]);
        assert_eq!(converted(json!([{"type": "text", "text": "s"}]), turns), Ok(expected));
        let plain = converted(Value::Null, json!([{"role": "user", "content": "a"}]));
        assert_eq!(plain, Ok(json!([{"role": "user", "content": "a"}])));
    }

    #[test]
    fn what_the_model_cannot_read_is_refused() {
        for turns in [
            json!([]),
            json!([{"role": "system", "content": "a"}]),
            json!([{"role": "user", "content": 1}]),
            json!([{"role": "user", "content": [{"type": "image", "source": {}}]}]),
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "The answer is"}]),
            json!([{"role": "assistant", "content": [{"type": "tool_use"}]}, {"role": "user", "content": "a"}]),
        ] {
            assert!(converted(Value::Null, turns.clone()).is_err(), "{turns}");
        }
        assert!(converted(json!(1), json!([{"role": "user", "content": "a"}])).is_err());
    }

    #[test]
    fn tools_are_those_of_openai() {
        let tools = |tools: Value, choice: Value| {
            let tools: Vec<Tool> = serde_json::from_value(tools).expect("tools");
            super::tools(tools, serde_json::from_value(choice).expect("a choice"))
                .map_err(|refusal| refusal.message)
        };
        let own = json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}}]);
        let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
        let definitions = vec![json!({"type": "function", "function": function})];
        for (choice, expected, parallel) in [
            (json!(null), ToolChoice::Auto, true),
            (json!({"type": "auto"}), ToolChoice::Auto, true),
            (json!({"type": "any", "disable_parallel_tool_use": true}), ToolChoice::Required, false),
            (json!({"type": "tool", "name": "f"}), ToolChoice::Named("f".to_owned()), true),
            (json!({"type": "none"}), ToolChoice::None, true),
        ] {
            let expected = Tools { definitions: definitions.clone(), choice: expected, parallel };
            assert_eq!(tools(own.clone(), choice), Ok(expected));
        }
        assert!(tools(json!([{"type": "web_search_20250305", "name": "web_search"}]), json!(null)).is_err());
        assert!(tools(json!([{"type": "custom"}]), json!(null)).is_err(), "it has no name");
    }

    #[test]
    fn the_model_reasons_on_request_only() {
        let thinks = |thinking: Value| {
            let thinking: Option<Thinking> = serde_json::from_value(thinking).expect("a field");
            chat_options(thinking.as_ref()).variables["enable_thinking"] == true
        };
        assert!(
            thinks(json!({"type": "enabled", "budget_tokens": 1024})) && thinks(json!({"type": "adaptive"}))
        );
        assert!(!thinks(json!({"type": "disabled"})) && !thinks(json!(null)));
    }
}
