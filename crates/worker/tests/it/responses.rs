//! OpenAI's Responses API over HTTP.

use serde_json::{Value, json};

use crate::client::post;
use crate::generation::{folder, named_events, serve, with_fields};
use crate::harness::settings;

/// A request for 12 greedy tokens.
fn body(extra: &Value) -> Value {
    let body = json!({
        "model": "model", "max_output_tokens": 12, "temperature": 0, "instructions": "w9", "input": "w4 w5 w6",
    });
    with_fields(body, extra)
}

#[test]
fn a_response_is_what_a_chat_completion_is() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    let messages = json!([{"role": "system", "content": "w9"}, {"role": "user", "content": "w4 w5 w6"}]);
    let openai = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let expected = post(*server, "/v1/chat/completions", &openai).expect(200);
    let text = &expected["choices"][0]["message"]["content"];
    let status = if expected["choices"][0]["finish_reason"] == "length" { "incomplete" } else { "completed" };
    let whole = post(*server, "/v1/responses", &body(&json!({"store": true}))).expect(200);
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!(status)));
    assert_eq!(whole["output"].as_array().map(Vec::len), Some(1));
    assert_eq!(whole["output"][0]["content"][0]["text"], *text);
    assert_eq!((&whole["store"], &whole["instructions"]), (&json!(false), &json!("w9")));
    assert_eq!(whole["usage"]["input_tokens"], expected["usage"]["prompt_tokens"]);
    assert_eq!(whole["usage"]["output_tokens"], expected["usage"]["completion_tokens"]);
    let items = json!([{"role": "user", "content": [{"type": "input_text", "text": "w4 w5 w6"}]}]);
    let same = post(*server, "/v1/responses", &body(&json!({"input": items}))).expect(200);
    assert_eq!(same["output"][0]["content"], whole["output"][0]["content"]);

    let values = named_events(&post(*server, "/v1/responses", &body(&json!({"stream": true}))));
    for (at, value) in values.iter().enumerate() {
        assert_eq!(value["sequence_number"], json!(at));
    }
    assert_eq!(
        (&values[0]["type"], &values[1]["type"]),
        (&json!("response.created"), &json!("response.in_progress"))
    );
    let deltas = values.iter().filter(|value| value["type"] == "response.output_text.delta");
    let streamed: String = deltas.filter_map(|value| value["delta"].as_str()).collect();
    assert_eq!(json!(streamed), *text);
    let last = values.last().expect("events");
    assert_eq!(last["type"], json!(format!("response.{status}")));
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    assert_eq!(last["response"]["usage"]["total_tokens"], whole["usage"]["total_tokens"]);
}

#[test]
fn what_needs_stored_responses_or_is_not_supported_is_refused() {
    let folder = folder();
    let server = serve(folder.path(), settings());
    for (extra, status) in [
        (json!({"previous_response_id": "resp_1"}), 400),
        (json!({"conversation": "conv_1"}), 400),
        (json!({"background": true}), 400),
        (json!({"truncation": "auto"}), 400),
        (json!({"top_logprobs": 2}), 400),
        (json!({"tools": [{"type": "web_search"}]}), 400),
        (json!({"text": {"format": {"type": "json_schema"}}}), 400),
        (json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), 400),
        (json!({"prompt": {"id": "pmpt_1"}}), 400),
        (json!({"model": "other"}), 404),
    ] {
        let answer = post(*server, "/v1/responses", &body(&extra)).expect(status);
        assert!(answer["error"]["message"].is_string(), "{extra}: {answer}");
    }
    let answer = post(*server, "/v1/responses", &body(&json!({"previous_response_id": "resp_1"})));
    assert!(answer.text().contains("not stored"), "{}", answer.text());
}
