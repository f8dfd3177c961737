//! Parses the text of a language model into an answer, reasoning and tool calls, while it is generated.

use std::mem::take;

use serde_json::Value;

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
const END_CALL: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";
const TOOL_CALLS: &str = "[TOOL_CALLS]";

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>` between text: Hermes, Qwen, SmolLM3.
    Hermes,
    /// The answer is `{"name": …, "parameters": …}`: Llama 3.
    Llama,
    /// The answer is `[{"name": …, "arguments": …}]`: Mistral.
    Mistral,
}

impl ToolFormat {
    /// The format that a chat template asks for.
    pub(crate) fn of(template: &str) -> Option<ToolFormat> {
        let formats = [
            (CALL, ToolFormat::Hermes),
            (TOOL_CALLS, ToolFormat::Mistral),
            (PYTHON_TAG, ToolFormat::Llama),
            ("\"parameters\": ", ToolFormat::Llama),
        ];
        formats.into_iter().find(|(mark, _)| template.contains(mark)).map(|(_, format)| format)
    }
}

/// Part of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delta {
    /// Text of the answer.
    Text(String),
    /// Text before the answer.
    Reasoning(String),
    /// A call of this tool begins. Calls are numbered from 0.
    Call { index: usize, name: String },
    /// The next part of the arguments, which are JSON.
    Arguments { index: usize, text: String },
}

impl Delta {
    /// Its text, whatever it is part of.
    pub(crate) fn into_text(self) -> String {
        match self {
            Delta::Text(text) | Delta::Reasoning(text) | Delta::Arguments { text, .. } => text,
            Delta::Call { .. } => String::new(),
        }
    }
}

/// A parser of one output.
#[derive(Clone, Debug)]
pub(crate) struct OutputParser {
    tools: Option<ToolFormat>,
    state: State,
    /// Text that is not parsed yet.
    buffer: String,
    /// Number of calls.
    calls: usize,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space came.
    Start { may_think: bool },
    /// In the reasoning.
    Reasoning { is_empty: bool },
    /// In the answer. White space is dropped at its start after a reasoning.
    Text { trims: bool },
    /// Where a call may begin: after the mark of a call, or between calls.
    BeforeCall,
    /// In a call.
    Call(CallScanner),
    /// After calls that are the whole answer: what follows is dropped.
    Ended,
}

impl OutputParser {
    /// A parser of text without reasoning and calls.
    pub(crate) fn plain() -> OutputParser {
        OutputParser { tools: None, state: State::Text { trims: false }, buffer: String::new(), calls: 0 }
    }

    /// A parser for a chat template and the prompt that it gave. Calls are parsed only if the request has tools.
    pub(crate) fn of(template: &str, prompt: &str, has_tools: bool) -> OutputParser {
        let tools = if has_tools { ToolFormat::of(template) } else { None };
        let may_think = template.contains(END_THINK);
        let state = if may_think && prompt.trim_end().ends_with(THINK) {
            State::Reasoning { is_empty: true }
        } else if may_think || matches!(tools, Some(ToolFormat::Llama | ToolFormat::Mistral)) {
            State::Start { may_think }
        } else {
            State::Text { trims: false }
        };
        OutputParser { tools, state, ..OutputParser::plain() }
    }

    /// Whether a call began.
    pub(crate) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Parses the next text.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Delta> {
        self.buffer += text;
        let mut deltas = Vec::new();
        while self.advance(&mut deltas) {}
        deltas
    }

    /// Ends the output: what looked like the beginning of a mark or a call is text.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let rest = take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Text { trims: false }) {
            State::Reasoning { .. } => reasoning(rest.trim_end(), &mut deltas),
            State::Ended => {}
            State::BeforeCall if self.calls > 0 => {}
            State::Start { .. } | State::Text { .. } | State::BeforeCall => text(&rest, &mut deltas),
            State::Call(call) => text(&call.abandon(), &mut deltas),
        }
        deltas
    }

    /// Parses a part of the buffer. Returns whether there may be more to parse.
    fn advance(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match &mut self.state {
            State::Start { may_think } => {
                let (may_think, seen) = (*may_think, self.buffer.trim_start());
                let marks = [(may_think, THINK), (self.tools == Some(ToolFormat::Mistral), TOOL_CALLS)];
                let python = (self.tools == Some(ToolFormat::Llama), PYTHON_TAG);
                let mut marks = marks.into_iter().chain([python]).filter(|(is_used, _)| *is_used);
                if seen.is_empty()
                    || marks.clone().any(|(_, mark)| mark.len() > seen.len() && mark.starts_with(seen))
                {
                    return false;
                }
                if let Some((_, mark)) = marks.find(|(_, mark)| seen.starts_with(mark)) {
                    self.buffer = seen[mark.len()..].to_owned();
                    self.state =
                        if mark == THINK { State::Reasoning { is_empty: true } } else { State::BeforeCall };
                } else {
                    let opens = match self.tools {
                        Some(ToolFormat::Llama) => seen.starts_with('{'),
                        Some(ToolFormat::Mistral) => seen.starts_with('['),
                        Some(ToolFormat::Hermes) | None => false,
                    };
                    self.state = if opens { State::BeforeCall } else { State::Text { trims: false } };
                }
                true
            }
            State::Reasoning { is_empty } => {
                if *is_empty {
                    self.buffer.drain(..self.buffer.len() - self.buffer.trim_start().len());
                }
                if let Some(at) = self.buffer.find(END_THINK) {
                    reasoning(self.buffer[..at].trim_end(), deltas);
                    self.buffer.drain(..at + END_THINK.len());
                    self.state = State::Text { trims: true };
                    return true;
                }
                let end = self.buffer[..self.buffer.len() - held(&self.buffer, END_THINK)].trim_end().len();
                *is_empty &= end == 0;
                reasoning(&self.buffer[..end], deltas);
                self.buffer.drain(..end);
                false
            }
            State::Text { trims } => {
                if *trims {
                    self.buffer.drain(..self.buffer.len() - self.buffer.trim_start().len());
                    *trims = self.buffer.is_empty();
                }
                if self.tools != Some(ToolFormat::Hermes) {
                    text(&take(&mut self.buffer), deltas);
                    return false;
                }
                if let Some(at) = self.buffer.find(CALL) {
                    text(self.buffer[..at].trim_end(), deltas);
                    self.buffer.drain(..at + CALL.len());
                    self.state = State::BeforeCall;
                    return true;
                }
                // White space before a call is not part of the answer.
                let end = self.buffer[..self.buffer.len() - held(&self.buffer, CALL)].trim_end().len();
                text(&self.buffer[..end], deltas);
                self.buffer.drain(..end);
                false
            }
            State::Ended => {
                self.buffer.clear();
                false
            }
            State::BeforeCall => {
                let Some(at) = self.buffer.find(|one: char| !one.is_whitespace() && !"[],;".contains(one))
                else {
                    return false;
                };
                if self.buffer[at..].starts_with('{') {
                    self.buffer.drain(..at);
                    self.state = State::Call(CallScanner::default());
                    return true;
                }
                if self.tools == Some(ToolFormat::Hermes) {
                    // The end of a call, or something else after its mark.
                    self.buffer.drain(..at);
                    if END_CALL.len() > self.buffer.len() && END_CALL.starts_with(self.buffer.as_str()) {
                        return false;
                    }
                    if let Some(rest) = self.buffer.strip_prefix(END_CALL) {
                        self.buffer = rest.to_owned();
                    }
                    self.state = State::Text { trims: true };
                    return true;
                }
                if self.calls > 0 {
                    self.state = State::Ended;
                    self.buffer.clear();
                } else {
                    text(&take(&mut self.buffer), deltas);
                    self.state = State::Text { trims: false };
                }
                false
            }
            State::Call(call) => {
                let used = call.push(&self.buffer, self.calls, deltas);
                self.buffer.drain(..used);
                let Some(is_call) = call.ended(self.calls, deltas) else { return false };
                self.calls += usize::from(is_call);
                self.state = if is_call { State::BeforeCall } else { State::Text { trims: false } };
                true
            }
        }
    }
}

fn text(text: &str, deltas: &mut Vec<Delta>) {
    if !text.is_empty() {
        deltas.push(Delta::Text(text.to_owned()));
    }
}

fn reasoning(text: &str, deltas: &mut Vec<Delta>) {
    if !text.is_empty() {
        deltas.push(Delta::Reasoning(text.to_owned()));
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
fn held(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len() - 1);
    (1..=longest).rev().find(|length| text.ends_with(&mark[..*length])).unwrap_or(0)
}

/// Scans the JSON object of a call.
#[derive(Clone, Debug, Default)]
struct CallScanner {
    text: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Where the arguments begin, once the name is known, and how many bytes of `text` were reported.
    arguments: Option<usize>,
    reported: usize,
    /// Whether the arguments are complete.
    closed: bool,
}

impl CallScanner {
    /// Scans to the end of the object or of `text`. Returns the number of bytes that it used.
    fn push(&mut self, text: &str, index: usize, deltas: &mut Vec<Delta>) -> usize {
        let mut used = text.len();
        for (at, one) in text.char_indices() {
            self.text.push(one);
            if self.in_string {
                (self.escaped, self.in_string) = (one == '\\' && !self.escaped, self.escaped || one != '"');
            } else {
                match one {
                    '"' => self.in_string = true,
                    '{' | '[' => self.depth += 1,
                    '}' | ']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
            }
            if self.arguments.is_none() && (one == '{') && self.depth == 2 {
                self.begin(index, deltas);
            }
            if self.arguments.is_some() && !self.closed && self.depth == 1 && !self.in_string {
                self.closed = true;
                self.report(index, deltas);
            }
            if self.depth == 0 {
                used = at + one.len_utf8();
                break;
            }
        }
        if self.arguments.is_some() && !self.closed {
            self.report(index, deltas);
        }
        used
    }

    /// Reports the name if the object that just began is the arguments.
    fn begin(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        let head = self.text[..self.text.len() - 1].trim_end();
        let Some(head) = head.strip_suffix(':').map(str::trim_end) else { return };
        let head = ["\"arguments\"", "\"parameters\""].iter().find_map(|key| head.strip_suffix(key));
        let Some(head) = head.and_then(|head| head.trim_end().strip_suffix(',')) else { return };
        if let Ok(object) = serde_json::from_str::<Value>(&format!("{head}}}"))
            && let Some(name) = object["name"].as_str()
        {
            deltas.push(Delta::Call { index, name: name.to_owned() });
            self.reported = self.text.len() - 1;
            self.arguments = Some(self.reported);
        }
    }

    /// Reports the next part of the arguments.
    fn report(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        let text = self.text[self.reported..].to_owned();
        self.reported = self.text.len();
        if !text.is_empty() {
            deltas.push(Delta::Arguments { index, text });
        }
    }

    /// Whether the object is complete, and then whether it was a call. What is no call is text.
    fn ended(&mut self, index: usize, deltas: &mut Vec<Delta>) -> Option<bool> {
        if self.depth > 0 {
            return None;
        }
        if self.arguments.is_some() {
            return Some(true);
        }
        let object: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let Some(name) = object["name"].as_str() else {
            text(&take(&mut self.text), deltas);
            return Some(false);
        };
        let arguments = object.get("arguments").or(object.get("parameters"));
        let arguments = match arguments {
            None | Some(Value::Null) => "{}".to_owned(),
            // Some models write the arguments as a string of JSON.
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        deltas.push(Delta::Call { index, name: name.to_owned() });
        deltas.push(Delta::Arguments { index, text: arguments });
        Some(true)
    }

    /// The text of a call that did not begin.
    fn abandon(self) -> String {
        if self.arguments.is_some() { String::new() } else { self.text }
    }
}

#[cfg(test)]
mod tests;
