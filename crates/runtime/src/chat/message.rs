//! A message of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message: a JSON object with `role`, `content`, and what else a chat template reads, such as `tool_calls`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Message(pub Map<String, Value>);

impl Message {
    /// A message of a role: `system`, `user`, `assistant`, `tool`, or another that the template knows. The content is a
    /// text, `null`, or a list of parts.
    pub fn new(role: &str, content: impl Into<Value>) -> Message {
        Message(Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())]))
    }

    /// The instructions of a conversation.
    pub fn system(content: impl Into<Value>) -> Message {
        Message::new("system", content)
    }

    /// A turn of the user.
    pub fn user(content: impl Into<Value>) -> Message {
        Message::new("user", content)
    }

    /// A turn of the model.
    pub fn assistant(content: impl Into<Value>) -> Message {
        Message::new("assistant", content)
    }

    /// The message with a further field.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Message {
        self.0.insert(field.to_owned(), value.into());
        self
    }

    /// The role; empty without one.
    pub fn role(&self) -> &str {
        self.text("role")
    }

    /// The content; empty if it is no text.
    pub fn content(&self) -> &str {
        self.text("content")
    }

    fn text(&self, field: &str) -> &str {
        self.0.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// The message as transformers passes it to a template: the reasoning under all of its names.
    pub(super) fn to_template(&self) -> Value {
        let fields = ["reasoning_content", "thinking", "reasoning"].iter();
        let Some(reasoning) = fields.filter_map(|field| self.0.get(*field)).find(|value| !value.is_null())
        else {
            return Value::Object(self.0.clone());
        };
        let mut fields = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
        fields.extend(self.0.clone());
        fields.insert("reasoning_content".to_owned(), reasoning.clone());
        Value::Object(fields)
    }
}
