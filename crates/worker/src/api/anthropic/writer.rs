//! The objects and events of Anthropic's `/v1/messages`.

use sconce::GeneratedToken;
use sconce_http::event_stream::{EventFormat, named_event};
use sconce_http::refusal::{Dialect, Refusal};
use serde_json::{Value, json};

use crate::api::completion::random_id;
use crate::operations::generate::{EndReason, EventWriter, FinishedOutput, Generating, TokenUsage, ToolCall};
use crate::operations::output_parser::Delta;

/// Writes a message, as events or as one object.
pub(super) struct Writer {
    id: String,
    model: String,
    /// The stop strings of the request.
    stop: Vec<String>,
    /// The open block.
    block: Option<Block>,
    /// Index of the next or open block.
    index: usize,
    reason: EndReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    ToolUse,
}

impl Writer {
    pub(super) fn new(model: String, stop: Vec<String>) -> Writer {
        let id = random_id("msg_");
        Writer { id, model, stop, block: None, index: 0, reason: EndReason::Stop }
    }

    /// The message with these blocks, without its end.
    fn message(&self, content: &[Value], usage: TokenUsage) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": written_usage(usage),
        })
    }

    /// Why it ended, and the stop string that ended it.
    fn stop_reason(&self, reason: EndReason) -> (&'static str, Option<&str>) {
        match reason {
            EndReason::Stop => ("end_turn", None),
            EndReason::StopString(index) => ("stop_sequence", self.stop.get(index).map(String::as_str)),
            EndReason::Length => ("max_tokens", None),
            EndReason::ToolCalls => ("tool_use", None),
        }
    }

    /// The whole response.
    pub(super) fn whole(&self, outputs: &[FinishedOutput], usage: TokenUsage) -> Value {
        let empty = FinishedOutput::default();
        let output = outputs.first().unwrap_or(&empty);
        let mut content = Vec::new();
        if !output.reasoning.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": output.reasoning, "signature": "" }));
        }
        if !output.text.is_empty() {
            content.push(json!({ "type": "text", "text": output.text }));
        }
        content.extend(output.calls.iter().filter_map(tool_use));
        let (reason, stop) = self.stop_reason(output.reason.unwrap_or(EndReason::Stop));
        let mut message = self.message(&content, usage);
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = stop.into();
        message
    }

    fn delta(&mut self, delta: Delta, output: &mut Vec<u8>) {
        let delta = match delta {
            Delta::Text(text) => {
                self.open(Block::Text, || json!({ "type": "text", "text": "" }), output);
                json!({ "type": "text_delta", "text": text })
            }
            Delta::Reasoning(text) => {
                let block = || json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.open(Block::Thinking, block, output);
                json!({ "type": "thinking_delta", "thinking": text })
            }
            Delta::Call { name, .. } => {
                self.close(output);
                let block =
                    || json!({ "type": "tool_use", "id": random_id("toolu_"), "name": name, "input": {} });
                self.open(Block::ToolUse, block, output);
                return;
            }
            Delta::Arguments { text, .. } => json!({ "type": "input_json_delta", "partial_json": text }),
        };
        event("content_block_delta", json!({ "index": self.index, "delta": delta }), output);
    }

    /// Begins a block, unless the open one is of this kind.
    fn open(&mut self, block: Block, value: impl FnOnce() -> Value, output: &mut Vec<u8>) {
        if self.block != Some(block) {
            self.close(output);
            self.block = Some(block);
            let start = json!({ "index": self.index, "content_block": value() });
            event("content_block_start", start, output);
        }
    }

    /// Ends the open block.
    fn close(&mut self, output: &mut Vec<u8>) {
        if self.block.take().is_some() {
            event("content_block_stop", json!({ "index": self.index }), output);
            self.index += 1;
        }
    }
}

/// A call, unless its arguments were cut.
fn tool_use(call: &ToolCall) -> Option<Value> {
    let input: Value = serde_json::from_str(&call.arguments).ok()?;
    Some(json!({ "type": "tool_use", "id": random_id("toolu_"), "name": call.name, "input": input }))
}

/// Tokens that were read from the prefix cache are counted apart.
fn written_usage(usage: TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
    })
}

/// Writes an event whose value has its name as `type`.
fn event(name: &str, mut value: Value, output: &mut Vec<u8>) {
    value["type"] = name.into();
    output.extend(named_event(name, &value));
}

impl EventWriter for Writer {
    const FORMAT: EventFormat = EventFormat::Sse;

    fn start(&mut self, generating: &Generating, output: &mut Vec<u8>) {
        let message = self.message(&[], TokenUsage { generated: 0, ..generating.usage() });
        event("message_start", json!({ "message": message }), output);
    }

    fn deltas(&mut self, _: usize, deltas: Vec<Delta>, _: Option<GeneratedToken>, output: &mut Vec<u8>) {
        for delta in deltas {
            self.delta(delta, output);
        }
    }

    fn end(&mut self, _: usize, reason: EndReason, output: &mut Vec<u8>) {
        self.close(output);
        self.reason = reason;
    }

    fn finish(&mut self, usage: TokenUsage, output: &mut Vec<u8>) {
        let (reason, stop) = self.stop_reason(self.reason);
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        event("message_delta", json!({ "delta": delta, "usage": written_usage(usage) }), output);
        event("message_stop", json!({}), output);
    }

    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>) {
        output.extend(named_event("error", &refusal.body(Dialect::Anthropic)));
    }
}

#[cfg(test)]
mod tests {
    use sconce_http::refusal::Kind;

    use super::*;

    fn writer() -> Writer {
        Writer::new("m".to_owned(), vec!["a".to_owned(), "b".to_owned()])
    }

    /// The values of written events, whose names are their types.
    fn values(output: Vec<u8>) -> Vec<Value> {
        let text = String::from_utf8(output).expect("text");
        let value = |event: &str| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let value: Value =
                serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), value["type"].as_str());
            value
        };
        text.split_terminator("\n\n").map(value).collect()
    }

    #[test]
    fn each_part_of_an_output_is_a_block() {
        let (mut writer, mut output) = (writer(), Vec::new());
        for delta in [
            Delta::Reasoning("hm".to_owned()),
            Delta::Text("I ".to_owned()),
            Delta::Text("call.".to_owned()),
            Delta::Call { index: 0, name: "f".to_owned() },
            Delta::Arguments { index: 0, text: "{\"x\": 1}".to_owned() },
            Delta::Call { index: 1, name: "g".to_owned() },
            Delta::Arguments { index: 1, text: "{}".to_owned() },
        ] {
            writer.delta(delta, &mut output);
        }
        writer.close(&mut output);
        writer.reason = EndReason::ToolCalls;
        writer.finish(TokenUsage { prompt: 5, cached: 2, generated: 7, reasoning: 1 }, &mut output);
        let values = values(output);
        let (mut blocks, mut ends): (Vec<Value>, usize) = (Vec::new(), 0);
        for value in &values {
            match value["type"].as_str() {
                Some("content_block_start") => {
                    assert_eq!((&value["index"], ends), (&json!(blocks.len()), blocks.len()));
                    blocks.push(value["content_block"]["type"].clone());
                }
                Some("content_block_delta") => assert_eq!(value["index"], json!(blocks.len() - 1)),
                Some("content_block_stop") => ends += 1,
                _ => {}
            }
        }
        assert_eq!((json!(blocks), ends), (json!(["thinking", "text", "tool_use", "tool_use"]), 4));
        let deltas = values.iter().filter(|value| value["type"] == "content_block_delta");
        let deltas: Vec<&Value> = deltas.map(|value| &value["delta"]).collect();
        assert_eq!(deltas[0], &json!({"type": "thinking_delta", "thinking": "hm"}));
        assert_eq!(deltas[1], &json!({"type": "text_delta", "text": "I "}));
        assert_eq!(deltas[3], &json!({"type": "input_json_delta", "partial_json": "{\"x\": 1}"}));
        let [.., delta, stop] = values.as_slice() else { panic!("{values:?}") };
        assert_eq!(delta["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
        assert_eq!(
            (&delta["usage"]["input_tokens"], &delta["usage"]["output_tokens"]),
            (&json!(3), &json!(7))
        );
        assert_eq!(stop, &json!({"type": "message_stop"}));
    }

    #[test]
    fn a_whole_message_has_the_same_blocks() {
        let call = |arguments: &str| ToolCall { name: "f".to_owned(), arguments: arguments.to_owned() };
        let output = FinishedOutput {
            text: "I call.".to_owned(),
            reasoning: "hm".to_owned(),
            calls: vec![call("{\"x\": 1}"), call("{\"x\"")],
            reason: Some(EndReason::ToolCalls),
            ..FinishedOutput::default()
        };
        let message = writer().whole(&[output], TokenUsage::default());
        let content = message["content"].as_array().expect("blocks");
        assert_eq!(content.len(), 3, "a call that was cut is left out");
        assert_eq!((&content[0]["thinking"], &content[1]["text"]), (&json!("hm"), &json!("I call.")));
        assert_eq!((&content[2]["name"], &content[2]["input"]), (&json!("f"), &json!({"x": 1})));
        assert_eq!(message["stop_reason"], "tool_use");
    }

    #[test]
    fn the_stop_string_is_named_and_an_error_is_an_event() {
        assert_eq!(writer().stop_reason(EndReason::StopString(1)), ("stop_sequence", Some("b")));
        assert_eq!(writer().stop_reason(EndReason::Length), ("max_tokens", None));
        assert_eq!(writer().stop_reason(EndReason::Stop), ("end_turn", None));
        let mut output = Vec::new();
        writer().fail(&Refusal::new(Kind::NotReady, "why"), &mut output);
        assert_eq!(values(output)[0]["error"], json!({"type": "overloaded_error", "message": "why"}));
    }
}
