//! The objects and events of OpenAI's Responses API.

use sconce::GeneratedToken;
use sconce_http::event_stream::{EventFormat, named_event};
use sconce_http::refusal::Refusal;
use serde_json::{Value, json};

use crate::api::completion::random_id;
use crate::operations::generate::{EndReason, EventWriter, FinishedOutput, Generating, TokenUsage, ToolCall};
use crate::operations::output_parser::Delta;

/// Writes a response, as events or as one object.
pub(super) struct Writer {
    /// The response, without output.
    response: Value,
    /// The items that are complete.
    items: Vec<Value>,
    open: Option<Item>,
    events: usize,
    reason: EndReason,
}

/// An item that is being written.
struct Item {
    id: String,
    kind: ItemKind,
    /// The text or the arguments so far.
    text: String,
}

enum ItemKind {
    Message,
    Reasoning,
    Call { call_id: String, name: String },
}

impl Item {
    fn new(kind: ItemKind) -> Item {
        let prefix = match kind {
            ItemKind::Message => "msg_",
            ItemKind::Reasoning => "rs_",
            ItemKind::Call { .. } => "fc_",
        };
        Item { id: random_id(prefix), kind, text: String::new() }
    }

    fn call(name: String) -> Item {
        Item::new(ItemKind::Call { call_id: random_id("call_"), name })
    }

    /// The item with its text so far.
    fn object(&self, status: &str) -> Value {
        let is_new = status == "in_progress";
        let content = if is_new { Vec::new() } else { vec![self.part()] };
        match &self.kind {
            ItemKind::Message => json!({
                "type": "message", "id": self.id, "status": status, "role": "assistant", "content": content,
            }),
            ItemKind::Reasoning => json!({
                "type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content,
            }),
            ItemKind::Call { call_id, name } => json!({
                "type": "function_call", "id": self.id, "status": status, "call_id": call_id, "name": name,
                "arguments": self.text,
            }),
        }
    }

    /// The content of a message or of a reasoning.
    fn part(&self) -> Value {
        match self.kind {
            ItemKind::Reasoning => json!({ "type": "reasoning_text", "text": self.text }),
            ItemKind::Message | ItemKind::Call { .. } => {
                json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
            }
        }
    }
}

impl Writer {
    /// A writer of a response with these fields.
    pub(super) fn new(response: Value) -> Writer {
        Writer { response, items: Vec::new(), open: None, events: 0, reason: EndReason::Stop }
    }

    /// The response in a state.
    fn object(&self, status: &str, usage: Option<TokenUsage>) -> Value {
        let mut object = self.response.clone();
        object["status"] = status.into();
        object["output"] = self.items.clone().into();
        object["usage"] = usage.map_or(Value::Null, written_usage);
        if status == "incomplete" {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        object
    }

    /// How the response ended.
    fn status(&self) -> &'static str {
        if self.reason == EndReason::Length { "incomplete" } else { "completed" }
    }

    /// The whole response.
    pub(super) fn whole(mut self, outputs: Vec<FinishedOutput>, usage: TokenUsage) -> Value {
        let output = outputs.into_iter().next().unwrap_or_default();
        self.reason = output.reason.unwrap_or(EndReason::Stop);
        let status = self.status();
        let texts = [(ItemKind::Reasoning, output.reasoning), (ItemKind::Message, output.text)];
        let texts = texts.into_iter().filter(|(_, text)| !text.is_empty());
        let texts = texts.map(|(kind, text)| Item { text, ..Item::new(kind) });
        let call = |ToolCall { name, arguments }: ToolCall| Item { text: arguments, ..Item::call(name) };
        let mut items: Vec<Item> = texts.chain(output.calls.into_iter().map(call)).collect();
        let last = items.pop();
        self.items = items.iter().map(|item| item.object("completed")).collect();
        // What was cut is the last item.
        self.items.extend(last.map(|item| item.object(status)));
        self.object(status, Some(usage))
    }

    /// Writes an event with its number.
    fn event(&mut self, name: &str, mut value: Value, output: &mut Vec<u8>) {
        value["type"] = name.into();
        value["sequence_number"] = self.events.into();
        self.events += 1;
        output.extend(named_event(name, &value));
    }

    fn delta(&mut self, delta: Delta, output: &mut Vec<u8>) {
        let (text, name) = match delta {
            Delta::Text(text) => {
                let is_open = |open: &Item| matches!(open.kind, ItemKind::Message);
                if !self.open.as_ref().is_some_and(is_open) {
                    self.begin(Item::new(ItemKind::Message), output);
                }
                (text, "response.output_text.delta")
            }
            Delta::Reasoning(text) => {
                let is_open = |open: &Item| matches!(open.kind, ItemKind::Reasoning);
                if !self.open.as_ref().is_some_and(is_open) {
                    self.begin(Item::new(ItemKind::Reasoning), output);
                }
                (text, "response.reasoning_text.delta")
            }
            Delta::Call { name, .. } => return self.begin(Item::call(name), output),
            Delta::Arguments { text, .. } => (text, "response.function_call_arguments.delta"),
        };
        let index = self.items.len();
        let Some(open) = &mut self.open else { return };
        open.text += &text;
        let mut value = json!({ "item_id": open.id, "output_index": index, "delta": text });
        match open.kind {
            ItemKind::Message => {
                value["content_index"] = 0.into();
                value["logprobs"] = json!([]);
            }
            ItemKind::Reasoning => value["content_index"] = 0.into(),
            ItemKind::Call { .. } => {}
        }
        self.event(name, value, output);
    }

    /// Begins an item.
    fn begin(&mut self, item: Item, output: &mut Vec<u8>) {
        self.close("completed", output);
        let index = self.items.len();
        let added = json!({ "output_index": index, "item": item.object("in_progress") });
        self.event("response.output_item.added", added, output);
        if !matches!(item.kind, ItemKind::Call { .. }) {
            let part = json!({
                "item_id": item.id, "output_index": index, "content_index": 0, "part": item.part(),
            });
            self.event("response.content_part.added", part, output);
        }
        self.open = Some(item);
    }

    /// Ends the open item.
    fn close(&mut self, status: &str, output: &mut Vec<u8>) {
        let Some(item) = self.open.take() else { return };
        let index = self.items.len();
        let mut done = json!({ "item_id": item.id, "output_index": index });
        if let ItemKind::Call { name, .. } = &item.kind {
            done["name"] = name.as_str().into();
            done["arguments"] = item.text.as_str().into();
            self.event("response.function_call_arguments.done", done, output);
        } else {
            done["content_index"] = 0.into();
            let mut part = done.clone();
            part["part"] = item.part();
            done["text"] = item.text.as_str().into();
            let name = if matches!(item.kind, ItemKind::Message) {
                done["logprobs"] = json!([]);
                "response.output_text.done"
            } else {
                "response.reasoning_text.done"
            };
            self.event(name, done, output);
            self.event("response.content_part.done", part, output);
        }
        let object = item.object(status);
        self.event("response.output_item.done", json!({ "output_index": index, "item": object }), output);
        self.items.push(object);
    }
}

fn written_usage(usage: TokenUsage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.generated,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.prompt + usage.generated,
    })
}

impl EventWriter for Writer {
    const FORMAT: EventFormat = EventFormat::Sse;

    fn start(&mut self, _: &Generating, output: &mut Vec<u8>) {
        for name in ["response.created", "response.in_progress"] {
            self.event(name, json!({ "response": self.object("in_progress", None) }), output);
        }
    }

    fn deltas(&mut self, _: usize, deltas: Vec<Delta>, _: Option<GeneratedToken>, output: &mut Vec<u8>) {
        for delta in deltas {
            self.delta(delta, output);
        }
    }

    fn end(&mut self, _: usize, reason: EndReason, output: &mut Vec<u8>) {
        self.reason = reason;
        self.close(self.status(), output);
    }

    fn finish(&mut self, usage: TokenUsage, output: &mut Vec<u8>) {
        let status = self.status();
        let response = self.object(status, Some(usage));
        self.event(&format!("response.{status}"), json!({ "response": response }), output);
    }

    fn fail(&mut self, refusal: &Refusal, output: &mut Vec<u8>) {
        self.close("incomplete", output);
        let mut response = self.object("failed", None);
        response["error"] = json!({ "code": "server_error", "message": refusal.message });
        self.event("response.failed", json!({ "response": response }), output);
    }
}

#[cfg(test)]
mod tests {
    use sconce_http::refusal::Kind;

    use super::*;

    fn writer() -> Writer {
        Writer::new(json!({ "id": "resp_1", "error": null, "incomplete_details": null }))
    }

    /// The values of written events, whose names are their types and which are numbered.
    fn values(output: Vec<u8>) -> Vec<Value> {
        let text = String::from_utf8(output).expect("text");
        let value = |(at, event): (usize, &str)| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let value: Value =
                serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
            assert_eq!(name.strip_prefix("event: "), value["type"].as_str());
            assert_eq!(value["sequence_number"], json!(at));
            value
        };
        text.split_terminator("\n\n").enumerate().map(value).collect()
    }

    fn deltas() -> Vec<Delta> {
        vec![
            Delta::Reasoning("hm".to_owned()),
            Delta::Text("I ".to_owned()),
            Delta::Text("call.".to_owned()),
            Delta::Call { index: 0, name: "f".to_owned() },
            Delta::Arguments { index: 0, text: "{\"x\"".to_owned() },
            Delta::Arguments { index: 0, text: ": 1}".to_owned() },
        ]
    }

    /// Items without ids.
    fn without_ids(items: &Value) -> Vec<Value> {
        let mut items = items.as_array().expect("items").clone();
        for item in items.iter_mut().filter_map(Value::as_object_mut) {
            item.retain(|name, _| name != "id" && name != "call_id");
        }
        items
    }

    #[test]
    fn each_part_of_an_output_is_an_item_that_begins_and_ends() {
        let (mut writer, mut output) = (writer(), Vec::new());
        for delta in deltas() {
            writer.delta(delta, &mut output);
        }
        writer.reason = EndReason::ToolCalls;
        writer.close("completed", &mut output);
        writer.finish(TokenUsage { prompt: 5, cached: 2, generated: 7, reasoning: 1 }, &mut output);
        let values = values(output);
        let names: Vec<&str> =
            values.iter().filter_map(|value| value["type"].as_str()?.strip_prefix("response.")).collect();
        let expected = [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ];
        assert_eq!(names, expected);
        let response = &values.last().expect("events")["response"];
        assert_eq!(response["usage"]["total_tokens"], 12);
        let done = values.iter().filter(|value| value["type"] == "response.output_item.done");
        let done: Vec<Value> = done.map(|value| value["item"].clone()).collect();
        assert_eq!(response["output"], json!(done));
        let whole = FinishedOutput {
            text: "I call.".to_owned(),
            reasoning: "hm".to_owned(),
            calls: vec![ToolCall { name: "f".to_owned(), arguments: "{\"x\": 1}".to_owned() }],
            reason: Some(EndReason::ToolCalls),
            ..FinishedOutput::default()
        };
        let whole = self::writer().whole(vec![whole], TokenUsage::default());
        assert_eq!(without_ids(&whole["output"]), without_ids(&response["output"]));
        assert_eq!(
            (&whole["status"], &whole["output"][1]["content"][0]["text"]),
            (&json!("completed"), &json!("I call."))
        );
    }

    #[test]
    fn an_output_that_is_cut_is_incomplete_and_an_error_is_the_last_event() {
        let cut = FinishedOutput {
            text: "a".to_owned(),
            reason: Some(EndReason::Length),
            ..FinishedOutput::default()
        };
        let whole = writer().whole(vec![cut], TokenUsage::default());
        assert_eq!(
            (&whole["status"], &whole["output"][0]["status"]),
            (&json!("incomplete"), &json!("incomplete"))
        );
        assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
        let (mut writer, mut output) = (writer(), Vec::new());
        writer.delta(Delta::Text("a".to_owned()), &mut output);
        writer.fail(&Refusal::new(Kind::NotReady, "why"), &mut output);
        let values = values(output);
        let last = values.last().expect("events");
        assert_eq!(
            (&last["type"], &last["response"]["status"]),
            (&json!("response.failed"), &json!("failed"))
        );
        assert_eq!(last["response"]["error"]["message"], "why");
    }
}
