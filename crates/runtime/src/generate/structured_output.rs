//! Structured output: what a generated text must match.

use serde_json::{Map, Value, json};

/// Maximum length of a schema, an expression or a grammar in bytes.
const MAX_BYTES: usize = 128 << 10;
/// Maximum nesting of a schema or a grammar.
const MAX_DEPTH: usize = 64;

/// What a generated text must match from its start to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum StructuredOutput {
    /// A JSON object.
    JsonObject,
    /// JSON that is valid by this JSON schema.
    JsonSchema(Value),
    /// A text that this regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// A text of this grammar, in the variant of Lark's syntax that `llguidance` defines.
    Grammar(String),
}

/// Whitespace between the tokens of JSON. It is bounded, so that a model can't continue it forever.
const JSON_WHITESPACE: &str = r" |\n{1,2}[ \t]{0,20}";

impl StructuredOutput {
    /// Adds to a JSON schema that whitespace is bounded. Schemas in a [`Grammar`](StructuredOutput::Grammar) need it; a
    /// [`JsonSchema`](StructuredOutput::JsonSchema) gets it by itself.
    pub fn bound_whitespace(schema: &mut Map<String, Value>) {
        schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": JSON_WHITESPACE }));
    }

    /// What it is, for messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            StructuredOutput::JsonObject => "the JSON object",
            StructuredOutput::JsonSchema(_) => "the JSON schema",
            StructuredOutput::Regex(_) => "the regular expression",
            StructuredOutput::Grammar(_) => "the grammar",
        }
    }

    /// Checks length and nesting, so that compiling it takes bounded time and stack.
    pub(super) fn check_size(&self) -> Result<(), String> {
        let (bytes, depth) = match self {
            StructuredOutput::JsonObject => (0, 0),
            StructuredOutput::JsonSchema(schema) => (schema.to_string().len(), depth(schema)),
            StructuredOutput::Regex(text) | StructuredOutput::Grammar(text) => (text.len(), nesting(text)),
        };
        if bytes > MAX_BYTES {
            return Err(format!("it has {bytes} bytes, limit: {MAX_BYTES}"));
        }
        if depth > MAX_DEPTH {
            return Err(format!("it is nested {depth} levels deep, limit: {MAX_DEPTH}"));
        }
        Ok(())
    }
}

/// Nesting of arrays and objects.
fn depth(value: &Value) -> usize {
    let (mut deepest, mut open) = (0, vec![(value, 1)]);
    while let Some((value, depth)) = open.pop() {
        let inner: Box<dyn Iterator<Item = &Value>> = match value {
            Value::Array(values) => Box::new(values.iter()),
            Value::Object(values) => Box::new(values.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => continue,
        };
        deepest = deepest.max(depth);
        open.extend(inner.map(|value| (value, depth + 1)));
    }
    deepest
}

/// Nesting of brackets. Escaped ones do not count.
fn nesting(text: &str) -> usize {
    let (mut deepest, mut depth, mut is_escaped) = (0, 0_usize, false);
    for character in text.chars() {
        match character {
            _ if is_escaped => {}
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        is_escaped = character == '\\' && !is_escaped;
        deepest = deepest.max(depth);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_and_deep_ones_are_refused() {
        let nested = |levels: usize| (0..levels).fold(json!(true), |inner, _| json!({ "not": inner }));
        let check = |output: StructuredOutput| output.check_size();
        assert_eq!(check(StructuredOutput::JsonSchema(nested(64))), Ok(()));
        let deep = check(StructuredOutput::JsonSchema(nested(65)));
        assert_eq!(deep, Err("it is nested 65 levels deep, limit: 64".to_owned()));
        let group = |levels: usize| StructuredOutput::Regex("(".repeat(levels) + &")".repeat(levels));
        assert!(check(group(64)).is_ok() && check(group(65)).is_err());
        assert_eq!(check(StructuredOutput::Regex(r"\(".repeat(100))), Ok(()));
        let long = check(StructuredOutput::Grammar(" ".repeat((128 << 10) + 1)));
        assert_eq!(long, Err("it has 131073 bytes, limit: 131072".to_owned()));
    }
}
