//! The objects of Ollama's `/api/chat` and `/api/generate`.

use std::time::{Duration, Instant, SystemTime};

use sconce::GeneratedToken;
use sconce_http::event_stream::EventFormat;
use sconce_http::refusal::{Dialect, Refusal};
use serde_json::{Value, json};

use crate::api::ollama::{nanoseconds, timestamp};
use crate::operations::generate::{EndReason, EventWriter, FinishedOutput, Generating, TokenUsage, ToolCall};
use crate::operations::output_parser::Delta;

/// The shape of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text is in `message`.
    Chat,
    /// Text is in `response`.
    Generate,
}

/// Times of a request.
pub(super) struct Times {
    pub(super) began: Instant,
    /// Time until the model was loaded.
    pub(super) load: Duration,
    /// Time until the first token.
    pub(super) first_token: Duration,
}

/// Writes a generation, as lines or as one object.
pub(super) struct Writer {
    pub(super) model: String,
    pub(super) shape: Shape,
    pub(super) times: Times,
    call: Option<ToolCall>,
    reason: EndReason,
}

impl Writer {
    pub(super) fn new(model: String, shape: Shape, times: Times) -> Writer {
        Writer { model, shape, times, call: None, reason: EndReason::Stop }
    }

    /// The object of an output or of a part of it.
    fn object(&self, text: &str, thinking: &str, calls: &[ToolCall]) -> Value {
        let mut part = match self.shape {
            Shape::Chat => json!({ "role": "assistant", "content": text }),
            Shape::Generate => json!({ "response": text }),
        };
        if !thinking.is_empty() {
            part["thinking"] = thinking.into();
        }
        let calls: Vec<Value> = calls.iter().filter_map(call).collect();
        if !calls.is_empty() {
            part["tool_calls"] = calls.into();
        }
        let mut object = match self.shape {
            Shape::Chat => json!({ "message": part }),
            Shape::Generate => part,
        };
        object["model"] = self.model.as_str().into();
        object["created_at"] = timestamp(SystemTime::now()).into();
        object["done"] = false.into();
        object
    }

    /// Adds the end of the generation to an object.
    fn add_end(&self, object: &mut Value, usage: TokenUsage) {
        let Times { began, load, first_token } = self.times;
        let total = began.elapsed();
        // Tool calls end like any answer.
        let reason = if self.reason == EndReason::Length { EndReason::Length } else { EndReason::Stop };
        object["done"] = true.into();
        object["done_reason"] = reason.name().into();
        object["total_duration"] = nanoseconds(total).into();
        object["load_duration"] = nanoseconds(load).into();
        object["prompt_eval_count"] = usage.prompt.into();
        object["prompt_eval_duration"] = nanoseconds(first_token.saturating_sub(load)).into();
        object["eval_count"] = usage.generated.into();
        object["eval_duration"] = nanoseconds(total.saturating_sub(first_token)).into();
    }

    /// The response to a request without a prompt, which loads the model.
    pub(super) fn loaded(&self) -> Value {
        let mut object = self.object("", "", &[]);
        object["done"] = true.into();
        object["done_reason"] = "load".into();
        object
    }

    /// The whole response.
    pub(super) fn whole(mut self, outputs: &[FinishedOutput], usage: TokenUsage) -> Value {
        let empty = FinishedOutput::default();
        let output = outputs.first().unwrap_or(&empty);
        self.reason = output.reason.unwrap_or(EndReason::Stop);
        let mut object = self.object(&output.text, &output.reasoning, &output.calls);
        self.add_end(&mut object, usage);
        object
    }

    fn delta(&mut self, delta: Delta, output: &mut Vec<u8>) {
        match delta {
            Delta::Text(text) => output.extend(Self::FORMAT.event(&self.object(&text, "", &[]))),
            Delta::Reasoning(text) => output.extend(Self::FORMAT.event(&self.object("", &text, &[]))),
            Delta::Call { name, .. } => {
                self.flush(output);
                self.call = Some(ToolCall { name, arguments: String::new() });
            }
            Delta::Arguments { text, .. } => {
                if let Some(call) = &mut self.call {
                    call.arguments += &text;
                }
            }
        }
    }

    /// Writes the call that is complete.
    fn flush(&mut self, output: &mut Vec<u8>) {
        if let Some(one) = self.call.take().filter(|one| call(one).is_some()) {
            output.extend(Self::FORMAT.event(&self.object("", "", &[one])));
        }
    }
}

/// A call, unless its arguments were cut.
fn call(call: &ToolCall) -> Option<Value> {
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    Some(json!({ "function": { "name": call.name, "arguments": arguments } }))
}

impl EventWriter for Writer {
    const FORMAT: EventFormat = EventFormat::JsonLines;

    fn start(&mut self, _: &Generating, _: &mut Vec<u8>) {}

    fn deltas(&mut self, _: usize, deltas: Vec<Delta>, _: Option<GeneratedToken>, output: &mut Vec<u8>) {
        for delta in deltas {
            self.delta(delta, output);
        }
    }

    fn end(&mut self, _: usize, reason: EndReason, output: &mut Vec<u8>) {
        self.flush(output);
        self.reason = reason;
    }

    fn finish(&mut self, usage: TokenUsage, output: &mut Vec<u8>) {
        let mut object = self.object("", "", &[]);
        self.add_end(&mut object, usage);
        output.extend(Self::FORMAT.event(&object));
    }

    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>) {
        output.extend(Self::FORMAT.event(&refusal.body(Dialect::Ollama)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(shape: Shape) -> Writer {
        let times =
            Times { began: Instant::now(), load: Duration::ZERO, first_token: Duration::from_millis(1) };
        Writer::new("m".to_owned(), shape, times)
    }

    /// The lines of deltas and the end, without times.
    fn lines(mut writer: Writer, deltas: Vec<Delta>) -> Vec<Value> {
        let mut output = Vec::new();
        for delta in deltas {
            writer.delta(delta, &mut output);
        }
        writer.flush(&mut output);
        writer.finish(TokenUsage { prompt: 3, cached: 1, generated: 2, reasoning: 0 }, &mut output);
        let text = String::from_utf8(output).expect("text");
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        for line in &mut lines {
            let fields = line.as_object_mut().expect("an object");
            let created = fields.remove("created_at").expect("a time");
            assert!(humantime::parse_rfc3339(created.as_str().expect("a text")).is_ok());
            fields.retain(|name, _| !name.ends_with("_duration"));
        }
        lines
    }

    #[test]
    fn a_call_is_one_line_with_its_arguments_as_an_object() {
        let deltas = vec![
            Delta::Reasoning("hm".to_owned()),
            Delta::Text("I call.".to_owned()),
            Delta::Call { index: 0, name: "f".to_owned() },
            Delta::Arguments { index: 0, text: "{\"a\"".to_owned() },
            Delta::Arguments { index: 0, text: ": 1}".to_owned() },
            Delta::Call { index: 1, name: "cut".to_owned() },
            Delta::Arguments { index: 1, text: "{\"a\"".to_owned() },
        ];
        let message = |mut fields: Value| {
            fields["role"] = json!("assistant");
            json!({"model": "m", "message": fields, "done": false})
        };
        let lines = lines(writer(Shape::Chat), deltas);
        assert_eq!(
            lines[..3],
            [
                message(json!({"content": "", "thinking": "hm"})),
                message(json!({"content": "I call."})),
                message(
                    json!({"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]})
                ),
            ]
        );
        let end = json!({
            "model": "m", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop",
            "prompt_eval_count": 3, "eval_count": 2,
        });
        assert_eq!(lines[3..], [end], "a call that was cut is left out");
    }

    #[test]
    fn a_whole_response_has_what_the_lines_have() {
        let output = FinishedOutput {
            text: "a".to_owned(),
            reasoning: "b".to_owned(),
            reason: Some(EndReason::Length),
            ..FinishedOutput::default()
        };
        let usage = TokenUsage { prompt: 3, cached: 1, generated: 2, reasoning: 0 };
        let whole = writer(Shape::Generate).whole(&[output], usage);
        assert_eq!((&whole["response"], &whole["thinking"]), (&json!("a"), &json!("b")));
        assert_eq!((&whole["done"], &whole["done_reason"]), (&json!(true), &json!("length")));
        for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
            assert!(whole[name].is_u64(), "{name}");
        }
        assert_eq!(writer(Shape::Generate).loaded()["done_reason"], "load");
    }
}
