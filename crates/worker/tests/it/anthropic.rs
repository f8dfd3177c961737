//! Anthropic's API over HTTP.

use sconce_http::{Keys, Settings as HttpSettings};
use sconce_worker::Settings;
use serde_json::{Value, json};

use crate::client::{post, post_with};
use crate::generation::{folder, named_events, serve, with_fields};
use crate::harness::{TestServer, settings};

/// A request for 12 greedy tokens.
fn body(extra: &Value) -> Value {
    let body = json!({
        "model": "model", "max_tokens": 12, "temperature": 0, "system": "w9",
        "messages": [{"role": "user", "content": "w4 w5 w6"}],
    });
    with_fields(body, extra)
}

/// The answer of OpenAI's route to the same conversation.
fn expected(server: &TestServer) -> Value {
    let messages = json!([{"role": "system", "content": "w9"}, {"role": "user", "content": "w4 w5 w6"}]);
    let openai = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    post(**server, "/v1/chat/completions", &openai).expect(200)
}

#[test]
fn messages_are_answered_as_openai_answers_them() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let expected = expected(&server);
    let text = &expected["choices"][0]["message"]["content"];
    let whole = post(*server, "/v1/messages", &body(&json!({}))).expect(200);
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    let reason = if expected["choices"][0]["finish_reason"] == "length" { "max_tokens" } else { "end_turn" };
    assert_eq!(
        (&whole["type"], &whole["role"], &whole["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!(reason))
    );
    let usage = &whole["usage"];
    let [input, cached, generated] = ["input_tokens", "cache_read_input_tokens", "output_tokens"]
        .map(|name| usage[name].as_u64().unwrap_or_else(|| panic!("{name}")));
    assert_eq!(json!(input + cached), expected["usage"]["prompt_tokens"]);
    assert_eq!(json!(generated), expected["usage"]["completion_tokens"]);

    let values = named_events(&post(*server, "/v1/messages", &body(&json!({"stream": true}))));
    let names: Vec<&str> = values.iter().filter_map(|value| value["type"].as_str()).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let streamed: String = values.iter().filter_map(|value| value["delta"]["text"].as_str()).collect();
    assert_eq!(json!(streamed), *text);
    let delta = &values[values.len() - 2];
    assert_eq!(
        (&delta["delta"]["stop_reason"], &delta["usage"]["output_tokens"]),
        (&json!(reason), &json!(generated))
    );

    let count = post(*server, "/v1/messages/count_tokens", &body(&json!({}))).expect(200);
    assert_eq!(count, json!({"input_tokens": input + cached}));
}

#[test]
fn the_stop_sequence_that_ended_the_answer_is_named() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let text = expected(&server)["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    let stop = text.split(' ').nth(2).expect("three words");
    for stream in [false, true] {
        let request = body(&json!({"stop_sequences": ["nothing", stop], "stream": stream}));
        let answer = post(*server, "/v1/messages", &request);
        let end = if stream {
            let values = named_events(&answer);
            values[values.len() - 2]["delta"].clone()
        } else {
            answer.expect(200)
        };
        assert_eq!((&end["stop_reason"], &end["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    }
}

#[test]
fn errors_and_keys_are_those_of_anthropic() {
    let folder = folder();
    let keys = Keys::read("a-key\n").expect("a key");
    let http = HttpSettings { keys, ..settings().http };
    let server = serve(folder.path(), Settings { http, ..settings() });
    let long = "w4 ".repeat(5000);
    for (extra, key, status, kind) in [
        (json!({}), "a-key", 200, Value::Null),
        (json!({}), "other", 401, json!("authentication_error")),
        (json!({"model": "other"}), "a-key", 404, json!("not_found_error")),
        (json!({"max_tokens": null}), "a-key", 400, json!("invalid_request_error")),
        (json!({"max_tokens": 0}), "a-key", 400, json!("invalid_request_error")),
        (
            json!({"messages": [{"role": "user", "content": long}]}),
            "a-key",
            400,
            json!("invalid_request_error"),
        ),
        (json!({"tool_choice": {"type": "any"}}), "a-key", 400, json!("invalid_request_error")),
        (json!({"mcp_servers": [{}]}), "a-key", 400, json!("invalid_request_error")),
    ] {
        let answer = post_with(*server, "/v1/messages", &[("x-api-key", key)], &body(&extra)).expect(status);
        assert_eq!(answer["error"]["type"], kind, "{extra}: {answer}");
        assert!(status == 200 || (answer["type"] == "error" && answer["error"]["message"].is_string()));
    }
}
