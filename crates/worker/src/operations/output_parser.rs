//! Parses the text of a language model into an answer, reasoning and tool calls, while it is generated.

mod call_scanner;
mod delta;

use std::mem::take;

use self::call_scanner::{CallScanner, END_CALL, Ended};
pub(crate) use self::delta::Delta;

const THINK: &str = "<think>";
const END_THINK: &str = "</think>";
const CALL: &str = "<tool_call>";
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

/// A parser of one output.
#[derive(Clone, Debug)]
pub(crate) struct OutputParser {
    tools: Option<ToolFormat>,
    /// Whether what follows the first call is dropped.
    is_single: bool,
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
    /// After the last call, where what follows is dropped.
    Ended,
}

impl OutputParser {
    /// A parser of text without reasoning and calls.
    pub(crate) fn plain() -> OutputParser {
        let state = State::Text { trims: false };
        OutputParser { tools: None, is_single: false, state, buffer: String::new(), calls: 0 }
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

    /// The same for an answer of at most one call.
    pub(crate) fn single(self) -> OutputParser {
        OutputParser { is_single: true, ..self }
    }

    /// Whether there is a call with all its arguments.
    pub(crate) fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether the next text is part of the reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Reasoning { .. })
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
            // Nothing follows calls that are the whole answer.
            State::Call(_) if self.calls > 0 && self.tools != Some(ToolFormat::Hermes) => {}
            State::Start { .. } | State::Text { .. } | State::BeforeCall => text(&rest, &mut deltas),
            State::Call(call) => {
                self.calls += usize::from(call.is_closed());
                text(&call.abandon(), &mut deltas);
            }
        }
        deltas
    }

    /// Parses a part of the buffer. Returns whether there may be more to parse.
    fn advance(&mut self, deltas: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Start { may_think } => self.start(may_think),
            State::Reasoning { is_empty } => self.reasoning(is_empty, deltas),
            State::Text { trims } => self.text(trims, deltas),
            State::BeforeCall => self.before_call(),
            State::Call(_) => self.call(deltas),
            State::Ended => {
                self.buffer.clear();
                false
            }
        }
    }

    fn start(&mut self, may_think: bool) -> bool {
        let seen = self.buffer.trim_start();
        let marks = [
            (may_think, THINK),
            (self.tools == Some(ToolFormat::Mistral), TOOL_CALLS),
            (self.tools == Some(ToolFormat::Llama), PYTHON_TAG),
        ];
        let mut marks = marks.into_iter().filter(|(is_used, _)| *is_used).map(|(_, mark)| mark);
        if seen.is_empty() || marks.clone().any(|mark| mark.len() > seen.len() && mark.starts_with(seen)) {
            return false;
        }
        if let Some(mark) = marks.find(|mark| seen.starts_with(mark)) {
            self.buffer = seen[mark.len()..].to_owned();
            self.state = if mark == THINK { State::Reasoning { is_empty: true } } else { State::BeforeCall };
        } else {
            let is_call = match self.tools {
                Some(ToolFormat::Llama) => seen.starts_with('{'),
                Some(ToolFormat::Mistral) => seen.starts_with('['),
                Some(ToolFormat::Hermes) | None => false,
            };
            self.state = if is_call { State::BeforeCall } else { State::Text { trims: false } };
        }
        true
    }

    fn reasoning(&mut self, is_empty: bool, deltas: &mut Vec<Delta>) -> bool {
        if is_empty {
            self.trim_start();
        }
        if let Some(before) = self.take_through(END_THINK) {
            reasoning(&before, deltas);
            self.state = State::Text { trims: true };
            return true;
        }
        let before = self.take_before(END_THINK);
        self.state = State::Reasoning { is_empty: is_empty && before.is_empty() };
        reasoning(&before, deltas);
        false
    }

    fn text(&mut self, trims: bool, deltas: &mut Vec<Delta>) -> bool {
        if trims {
            self.trim_start();
            self.state = State::Text { trims: self.buffer.is_empty() };
        }
        if self.tools != Some(ToolFormat::Hermes) {
            text(&take(&mut self.buffer), deltas);
            return false;
        }
        if let Some(before) = self.take_through(CALL) {
            text(&before, deltas);
            self.state = State::BeforeCall;
            return true;
        }
        text(&self.take_before(CALL), deltas);
        false
    }

    fn before_call(&mut self) -> bool {
        let Some(at) = self.buffer.find(|one: char| !one.is_whitespace() && !"[],;".contains(one)) else {
            return false;
        };
        if self.buffer[at..].starts_with('{') {
            let before: String = self.buffer.drain(..at).collect();
            // After a mark, white space is no part of a text.
            let before = if self.tools == Some(ToolFormat::Hermes) { String::new() } else { before };
            self.state = State::Call(CallScanner::new(before));
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
        // Where calls are the whole answer, nothing follows them, and text that is no call is an answer.
        self.state = if self.calls > 0 { State::Ended } else { State::Text { trims: false } };
        true
    }

    fn call(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let State::Call(call) = &mut self.state else { return false };
        let used = call.push(&self.buffer, self.calls, deltas);
        self.buffer.drain(..used);
        let is_marked = self.tools == Some(ToolFormat::Hermes);
        self.state = match call.ended(self.calls, is_marked, deltas) {
            None => return false,
            Some(Ended::Call) => {
                self.calls += 1;
                if self.is_single { State::Ended } else { State::BeforeCall }
            }
            Some(Ended::Text(_)) if self.calls > 0 && !is_marked => State::Ended,
            Some(Ended::Text(object)) => {
                text(&object, deltas);
                State::Text { trims: false }
            }
        };
        true
    }

    fn trim_start(&mut self) {
        self.buffer.drain(..self.buffer.len() - self.buffer.trim_start().len());
    }

    /// Removes the text to the end of `mark`. Returns what precedes it, without the white space at its end.
    fn take_through(&mut self, mark: &str) -> Option<String> {
        let at = self.buffer.find(mark)?;
        let before = self.buffer[..at].trim_end().to_owned();
        self.buffer.drain(..at + mark.len());
        Some(before)
    }

    /// Removes the text that precedes `mark` wherever that begins: not the white space at the end, and not what
    /// may be the beginning of `mark`.
    fn take_before(&mut self, mark: &str) -> String {
        let end = self.buffer[..self.buffer.len() - held(&self.buffer, mark)].trim_end().len();
        self.buffer.drain(..end).collect()
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

#[cfg(test)]
mod tests;
