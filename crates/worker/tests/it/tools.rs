//! Tool calls over HTTP: calls that a request demands are valid, whatever the model would write.

use std::collections::BTreeMap;

use sconce_testkit::{byte_model, goldens};
use serde_json::{Value, json};

use crate::client::post;
use crate::generation::{events, named_events, serve, with_fields};
use crate::harness::{TestServer, settings};

/// A server of a random model with the chat template of a real one.
fn server(template: &str) -> TestServer {
    let folder = tempfile::tempdir().expect("a folder").keep();
    byte_model::write(&folder, Some(&goldens::chat_template(template)));
    serve(&folder, settings())
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "maxLength": 8 },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
        },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

/// A request that demands calls of `weather` or `time`.
fn request(seed: usize, fields: &Value) -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let zone = json!({"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": false});
    let body = json!({
        "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [tool("weather", parameters()), tool("time", zone)],
        "tool_choice": "required", "temperature": 1, "seed": seed, "max_tokens": 600,
    });
    with_fields(body, fields)
}

/// Checks the arguments of a call.
fn check(name: &str, arguments: &str) {
    let value: Value = serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{arguments}"));
    let object = value.as_object().expect("an object");
    match name {
        "weather" => {
            assert!(
                object.len() == 2 && value["city"].as_str().is_some_and(|city| city.chars().count() <= 8)
            );
            assert!(value["days"].as_u64().is_some_and(|days| (1..=9).contains(&days)), "{arguments}");
        }
        "time" => assert!(object.len() == 1 && ["UTC", "CET"].map(Value::from).contains(&value["zone"])),
        _ => panic!("{name}"),
    }
}

/// Names and arguments of the calls of a stream, which are numbered.
fn streamed_calls(values: &[Value]) -> Vec<(String, String)> {
    let mut calls: BTreeMap<u64, (String, String)> = BTreeMap::new();
    let deltas = values.iter().filter_map(|value| value["choices"][0]["delta"]["tool_calls"][0].as_object());
    for delta in deltas {
        let call = calls.entry(delta["index"].as_u64().expect("a number")).or_default();
        let part = |name: &str| delta["function"][name].as_str().unwrap_or_default().to_owned();
        call.0 += &part("name");
        call.1 += &part("arguments");
    }
    calls.into_values().collect()
}

#[test]
fn required_calls_are_valid_in_every_format_as_a_whole_and_as_a_stream() {
    for template in ["qwen3", "llama3_2", "mistral_nemo"] {
        let server = server(template);
        let mut finished = 0;
        for seed in 0..8 {
            let whole = post(*server, "/v1/chat/completions", &request(seed, &json!({}))).expect(200);
            let choice = &whole["choices"][0];
            let stream = post(*server, "/v1/chat/completions", &request(seed, &json!({"stream": true})));
            let (values, is_done) = events(&stream);
            assert!(is_done);
            let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten().map(|call| {
                let part = |name: &str| call["function"][name].as_str().expect("a text").to_owned();
                (part("name"), part("arguments"))
            });
            let calls: Vec<(String, String)> = calls.collect();
            assert_eq!(calls, streamed_calls(&values), "{template} {seed}");
            if choice["finish_reason"] == "length" {
                continue;
            }
            finished += 1;
            assert_eq!(choice["finish_reason"], "tool_calls", "{template} {seed}: {choice}");
            assert_eq!(choice["message"]["content"], Value::Null);
            assert!(!calls.is_empty());
            for (name, arguments) in calls {
                check(&name, &arguments);
            }
        }
        assert!(finished >= 6, "{template}: {finished} of 8 ended");
    }
}

#[test]
fn a_conversation_goes_on_after_a_call_with_every_template() {
    for template in ["qwen3", "llama3_2", "mistral_nemo"] {
        let server = server(template);
        let called = (0..8).find_map(|seed| {
            let body = request(seed, &json!({"parallel_tool_calls": false}));
            let mut whole = post(*server, "/v1/chat/completions", &body).expect(200);
            (whole["choices"][0]["finish_reason"] == "tool_calls")
                .then(|| whole["choices"][0]["message"].take())
        });
        let called = called.expect("one of eight ends");
        assert_eq!(called["tool_calls"].as_array().map(Vec::len), Some(1), "{template}");
        // As clients send it back: with the ids of this server, and null in the fields without a value.
        let result = json!({"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "20"});
        let user = json!({"role": "user", "content": "What is the weather?"});
        let answered = json!({
            "role": "assistant", "content": "20 degrees", "refusal": null, "tool_calls": null, "function_call": null,
        });
        let messages = json!([user, called, result, answered, user]);
        let body = request(1, &json!({"messages": messages, "tool_choice": "auto", "max_tokens": 4}));
        let whole = post(*server, "/v1/chat/completions", &body).expect(200);
        assert!(whole["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{template}");
    }
}

#[test]
fn a_named_tool_is_called_once_in_every_dialect() {
    let server = server("qwen3");
    let choice = json!({"type": "function", "function": {"name": "weather"}});
    let whole =
        post(*server, "/v1/chat/completions", &request(1, &json!({"tool_choice": choice}))).expect(200);
    let calls = whole["choices"][0]["message"]["tool_calls"].as_array().expect("calls");
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")));
    check("weather", calls[0]["function"]["arguments"].as_str().expect("a text"));

    let messages = json!({
        "model": "model", "max_tokens": 600, "temperature": 1, "messages": [{"role": "user", "content": "What is it?"}],
        "tools": [{"name": "weather", "input_schema": parameters()}], "tool_choice": {"type": "tool", "name": "weather"},
    });
    let whole = post(*server, "/v1/messages", &messages).expect(200);
    assert_eq!(
        (&whole["stop_reason"], &whole["content"][0]["name"]),
        (&json!("tool_use"), &json!("weather"))
    );
    check("weather", &whole["content"][0]["input"].to_string());

    let responses = json!({
        "input": "What is it?", "max_output_tokens": 600, "stream": true,
        "tools": [{"type": "function", "name": "weather", "parameters": parameters()}], "tool_choice": "required",
        "parallel_tool_calls": false,
    });
    let values = named_events(&post(*server, "/v1/responses", &responses));
    let last = &values.last().expect("events")["response"];
    assert_eq!((&last["status"], &last["output"][0]["name"]), (&json!("completed"), &json!("weather")));
    check("weather", last["output"][0]["arguments"].as_str().expect("a text"));
}

#[test]
fn structured_output_is_the_answer_where_the_prompt_begins_a_reasoning() {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let template =
        "{% for message in messages %}{{ message.content }}{% endfor %}<think>\n{# </think> <tool_call> #}";
    byte_model::write(&folder, Some(template));
    let server = serve(&folder, settings());
    let format = json!({"type": "json_schema", "json_schema": {"name": "city", "schema": parameters()}});
    let body = json!({
        "messages": [{"role": "user", "content": "a"}], "response_format": format, "max_tokens": 300, "seed": 3,
    });
    let message = &post(*server, "/v1/chat/completions", &body).expect(200)["choices"][0]["message"];
    check("weather", message["content"].as_str().expect("a text"));
    assert!(message.get("reasoning_content").is_none());
    let called = post(*server, "/v1/chat/completions", &request(3, &json!({}))).expect(200);
    assert_eq!(called["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn definitions_of_a_schema_are_found_and_malformed_calls_are_no_fault() {
    let server = server("qwen3");
    let parameters = json!({
        "type": "object", "properties": {"size": {"$ref": "#/$defs/Size"}}, "required": ["size"],
        "additionalProperties": false, "$defs": {"Size": {"enum": ["small", "large"]}},
    });
    let tools = json!([{"type": "function", "function": {"name": "order", "parameters": parameters}}]);
    let called = post(*server, "/v1/chat/completions", &request(1, &json!({"tools": tools}))).expect(200);
    for call in called["choices"][0]["message"]["tool_calls"].as_array().expect("calls") {
        let arguments: Value =
            serde_json::from_str(call["function"]["arguments"].as_str().expect("a text")).expect("JSON");
        assert!(["small", "large"].map(Value::from).contains(&arguments["size"]), "{arguments}");
    }
    for calls in [json!(["x"]), json!([{"function": "x"}]), json!("x")] {
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": calls}]);
        let answer = post(*server, "/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1}));
        assert!([200, 400].contains(&answer.status), "{}", answer.text());
    }
}
