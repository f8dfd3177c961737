//! Messages of OpenAI's API as chat templates read them.

use sconce::Message;
use sconce_http::refusal::Refusal;
use serde_json::Value;

use crate::operations::context::invalid;

/// Messages with their content as text, and with arguments of tool calls as objects.
pub(crate) fn of_openai(mut messages: Vec<Message>) -> Result<Vec<Message>, Refusal> {
    for (at, Message(fields)) in messages.iter_mut().enumerate() {
        // Clients send back what they got, with a null in each optional field. Templates ask only whether there is a field.
        fields.retain(|_, value| !value.is_null());
        if fields.get("tool_calls").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            fields.remove("tool_calls");
        }
        if !fields.get("role").is_some_and(Value::is_string) {
            return Err(invalid(format!("message {at} has no `role`")));
        }
        // Chat templates know the older name only.
        if fields.get("role").is_some_and(|role| role == "developer") {
            fields.insert("role".to_owned(), "system".into());
        }
        if !fields.contains_key("content") {
            // An answer of calls has no text, and chat templates search in it.
            if fields.get("role").is_none_or(|role| role != "assistant") {
                return Err(invalid(format!("message {at} has no `content`")));
            }
            fields.insert("content".to_owned(), "".into());
        }
        if let Some(Value::Array(parts)) = fields.get("content") {
            let text = text_of_parts(parts).map_err(|kind| {
                invalid(format!("message {at} has a part of type `{kind}`, and the model reads text only"))
            })?;
            fields.insert("content".to_owned(), Value::String(text));
        }
        if let Some(Value::Array(calls)) = fields.get_mut("tool_calls") {
            calls.iter_mut().for_each(parse_arguments);
        }
    }
    Ok(messages)
}

/// The text of all parts, or the type of a part that is no text.
fn text_of_parts(parts: &[Value]) -> Result<String, String> {
    let mut texts = Vec::new();
    for part in parts {
        match (part["type"].as_str(), &part["text"]) {
            (Some("text" | "input_text" | "output_text"), Value::String(text)) => texts.push(text.as_str()),
            (kind, _) => return Err(kind.unwrap_or("?").to_owned()),
        }
    }
    Ok(texts.join("\n"))
}

/// Parses the arguments of a tool call, which OpenAI's API writes as a string of JSON.
fn parse_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    if let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
        *arguments = parsed;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn converted(message: Value) -> Result<Value, String> {
        let message: Message = serde_json::from_value(message).map_err(|error| error.to_string())?;
        let messages = of_openai(vec![message]).map_err(|refusal| refusal.message)?;
        serde_json::to_value(&messages[0]).map_err(|error| error.to_string())
    }

    #[test]
    fn parts_are_joined_and_arguments_parsed() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let joined = converted(json!({"role": "user", "content": parts}));
        assert_eq!(joined, Ok(json!({"role": "user", "content": "a\nb"})));
        let call = |arguments: Value| {
            json!({"role": "assistant", "content": "",
                   "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
        };
        assert_eq!(converted(call(json!("{\"a\": 1}"))), Ok(call(json!({"a": 1}))));
        assert_eq!(converted(call(json!("no json"))), Ok(call(json!("no json"))));
        for calls in
            [json!(["x"]), json!([{"function": "x"}]), json!([{"function": {"arguments": 1}}]), json!({})]
        {
            let message = json!({"role": "assistant", "content": "", "tool_calls": calls});
            for bare in [
                json!({"role": "assistant", "tool_calls": calls}),
                json!({"role": "assistant", "content": null, "tool_calls": calls}),
            ] {
                assert_eq!(converted(bare), Ok(message.clone()));
            }
        }
        for nothing in [json!(null), json!([])] {
            let echoed = json!({"role": "assistant", "content": "a", "refusal": null, "tool_calls": nothing});
            assert_eq!(converted(echoed), Ok(json!({"role": "assistant", "content": "a"})));
        }
        let developer = converted(json!({"role": "developer", "content": "a"}));
        assert_eq!(developer, Ok(json!({"role": "system", "content": "a"})));
    }

    #[test]
    fn images_and_messages_without_a_role_are_refused() {
        let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        assert_eq!(
            converted(image),
            Err("message 0 has a part of type `image_url`, and the model reads text only".to_owned())
        );
        assert_eq!(converted(json!({"content": "a"})), Err("message 0 has no `role`".to_owned()));
        assert_eq!(converted(json!({"role": "user"})), Err("message 0 has no `content`".to_owned()));
    }
}
