//! Input items of OpenAI's Responses API as chat templates read them.

use std::collections::BTreeMap;

use sconce::Message;
use sconce_http::refusal::Refusal;
use serde_json::{Map, Value, json};

use crate::api::messages;
use crate::operations::context::invalid;
use crate::operations::tools::{ToolChoice, Tools};

/// The messages of a request.
pub(super) fn messages(instructions: Option<String>, input: Value) -> Result<Vec<Message>, Refusal> {
    let mut messages: Vec<Message> = instructions.into_iter().map(Message::system).collect();
    match input {
        Value::String(text) => messages.push(Message::user(text)),
        Value::Array(items) if !items.is_empty() => {
            let mut names = BTreeMap::new();
            for (at, item) in items.into_iter().enumerate() {
                add(at, item, &mut names, &mut messages)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            return Err(invalid("`input` must be a text or a list of items"));
        }
    }
    messages::of_openai(messages)
}

/// Adds an item. `names` are the names of functions by the id of their call.
fn add(
    at: usize,
    item: Value,
    names: &mut BTreeMap<String, String>,
    messages: &mut Vec<Message>,
) -> Result<(), Refusal> {
    let Value::Object(mut item) = item else {
        return Err(invalid(format!("item {at} of `input` is no object")));
    };
    let text = |item: &Map<String, Value>, name: &str| {
        let text = item.get(name).and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| invalid(format!("item {at} of `input` has no `{name}`")))
    };
    match item.get("type").and_then(Value::as_str).unwrap_or("message") {
        "message" => {
            let role = match text(&item, "role")?.as_str() {
                "developer" => "system".to_owned(),
                role => role.to_owned(),
            };
            messages.push(Message::new(&role, item.remove("content").unwrap_or_default()));
        }
        "function_call" => {
            let (id, name) = (text(&item, "call_id")?, text(&item, "name")?);
            let function = json!({ "name": name, "arguments": text(&item, "arguments")? });
            let call = json!({ "id": id, "type": "function", "function": function });
            names.insert(id, name);
            add_call(call, messages);
        }
        "function_call_output" => {
            let id = text(&item, "call_id")?;
            let mut message = Message::new("tool", item.remove("output").unwrap_or_default());
            message.0.extend(names.get(&id).map(|name| ("name".to_owned(), name.as_str().into())));
            message.0.insert("tool_call_id".to_owned(), id.into());
            messages.push(message);
        }
        // The reasoning of earlier turns is not part of the prompt.
        "reasoning" => {}
        kind => {
            return Err(invalid(format!(
                "item {at} of `input` has the type `{kind}`, which is not supported"
            )));
        }
    }
    Ok(())
}

/// Adds a call to the turn of the assistant that it belongs to.
fn add_call(call: Value, messages: &mut Vec<Message>) {
    let is_assistant = |message: &&mut Message| message.0.get("role").is_some_and(|role| role == "assistant");
    if let Some(Message(fields)) = messages.last_mut().filter(is_assistant) {
        if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
            calls.push(call);
        } else {
            fields.insert("tool_calls".to_owned(), vec![call].into());
        }
        return;
    }
    let mut message = Message::assistant("");
    message.0.insert("tool_calls".to_owned(), vec![call].into());
    messages.push(message);
}

/// The tools of a request.
pub(super) fn tools(tools: &[Value], choice: &Value, parallel: bool) -> Result<Tools, Refusal> {
    let mut definitions = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let kind = tool["type"].as_str().unwrap_or("?");
        if kind != "function" {
            return Err(invalid(format!(
                "tool {at} has the type `{kind}`, and only `function` is supported"
            )));
        }
        let fields = ["name", "description", "parameters", "strict"];
        let fields = fields.iter().filter_map(|name| Some(((*name).to_owned(), tool.get(*name)?.clone())));
        let function: Map<String, Value> = fields.filter(|(_, value)| !value.is_null()).collect();
        definitions.push(json!({ "type": "function", "function": function }));
    }
    let choice = match (choice.as_str(), choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), ..) => ToolChoice::Auto,
        (Some("none"), ..) => ToolChoice::None,
        (Some("required"), ..) => ToolChoice::Required,
        (None, Some("function"), Some(name)) => ToolChoice::Named(name.to_owned()),
        _ => return Err(invalid("`tool_choice` must be `auto`, `none`, `required` or a function")),
    };
    Tools::new(definitions, choice, parallel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(input: Value) -> Result<Value, String> {
        let messages = messages(Some("s".to_owned()), input).map_err(|refusal| refusal.message)?;
        serde_json::to_value(&messages[1..]).map_err(|error| error.to_string())
    }

    #[test]
    fn items_become_messages_with_calls_and_results() {
        assert_eq!(converted(json!("a")), Ok(json!([{"role": "user", "content": "a"}])));
        let input = json!([
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}"},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "3"},
        ]);
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = [call("1", "f", json!({"x": 1})), call("2", "g", json!({}))];
        let expected = json!([
            {"role": "system", "content": "d"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": calls},
            {"role": "tool", "content": "3", "name": "f", "tool_call_id": "1"},
        ]);
        assert_eq!(converted(input), Ok(expected));
    }

    #[test]
    fn what_the_model_cannot_read_is_refused() {
        for input in [
            json!(null),
            json!([]),
            json!([1]),
            json!([{"type": "item_reference", "id": "msg_1"}]),
            json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
            json!([{"type": "function_call", "name": "f"}]),
            json!([{"content": "a"}]),
        ] {
            assert!(converted(input.clone()).is_err(), "{input}");
        }
    }

    #[test]
    fn functions_are_those_of_chat_completions() {
        let own =
            [json!({"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": null})];
        let definition =
            json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        let choice = |choice: Value| tools(&own, &choice, true).map_err(|refusal| refusal.message);
        let expected = |choice| Ok(Tools { definitions: vec![definition.clone()], choice, parallel: true });
        assert_eq!(choice(json!("auto")), expected(ToolChoice::Auto));
        assert_eq!(choice(json!("required")), expected(ToolChoice::Required));
        let named = json!({"type": "function", "name": "f"});
        assert_eq!(choice(named), expected(ToolChoice::Named("f".to_owned())));
        assert!(choice(json!("other")).is_err() && choice(json!({"type": "web_search"})).is_err());
        assert!(tools(&[json!({"type": "web_search"})], &json!("auto"), true).is_err());
    }
}
