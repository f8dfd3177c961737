//! Scans the JSON of a tool call while it is generated.

use std::mem::take;

use serde_json::Value;

use super::delta::Delta;

/// What follows a call in the format of Hermes.
pub(super) const END_CALL: &str = "</tool_call>";

/// Scans the JSON object of a call.
#[derive(Clone, Debug, Default)]
pub(super) struct CallScanner {
    /// What came before the object, such as the bracket of a list.
    before: String,
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

/// What an object was.
pub(super) enum Ended {
    Call,
    /// No call, with what came before it.
    Text(String),
}

impl CallScanner {
    pub(super) fn new(before: String) -> CallScanner {
        CallScanner { before, ..CallScanner::default() }
    }

    /// Scans to the end of the object or of `text`. Returns the number of bytes that it used.
    pub(super) fn push(&mut self, text: &str, index: usize, deltas: &mut Vec<Delta>) -> usize {
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
            // Some models forget the last brace.
            if self.closed && !self.in_string && one == '>' && self.text.ends_with(END_CALL) {
                self.depth = 0;
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

    /// What the object was, if it is complete. A call has arguments, unless a mark says that it is one.
    pub(super) fn ended(&mut self, index: usize, is_marked: bool, deltas: &mut Vec<Delta>) -> Option<Ended> {
        if self.depth > 0 {
            return None;
        }
        if self.arguments.is_some() {
            return Some(Ended::Call);
        }
        let object: Value = serde_json::from_str(&self.text).unwrap_or_default();
        let arguments = object.get("arguments").or(object.get("parameters"));
        let name = object["name"].as_str().filter(|_| is_marked || arguments.is_some());
        let Some(name) = name else { return Some(Ended::Text(take(&mut self.before) + &self.text)) };
        let arguments = match arguments {
            None | Some(Value::Null) => "{}".to_owned(),
            // Some models write the arguments as a string of JSON.
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        deltas.push(Delta::Call { index, name: name.to_owned() });
        deltas.push(Delta::Arguments { index, text: arguments });
        Some(Ended::Call)
    }

    /// Whether its arguments are complete.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The text of a call that did not begin.
    pub(super) fn abandon(self) -> String {
        if self.arguments.is_some() { String::new() } else { self.before + &self.text }
    }
}
