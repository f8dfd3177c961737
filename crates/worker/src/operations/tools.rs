//! Tools of a conversation: which ones the model may or must call, and the grammar of calls.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sconce::StructuredOutput;
use sconce_http::refusal::Refusal;
use serde_json::{Map, Value, json};

use crate::operations::context::invalid;
use crate::operations::output_parser::ToolFormat;

/// Calls of an answer that must call tools.
const MAX_CALLS: usize = 8;

/// Whether the model calls tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// It decides.
    #[default]
    Auto,
    /// It calls none, and sees none.
    None,
    /// It calls at least one.
    Required,
    /// It calls the tool of this name.
    Named(String),
}

/// Tools in OpenAI's format.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// Their definitions, as the chat template gets them.
    pub(crate) definitions: Vec<Value>,
    pub(crate) choice: ToolChoice,
    /// Whether the answer may have several calls.
    pub(crate) parallel: bool,
}

impl Tools {
    /// Checks the definitions and the choice.
    pub(crate) fn new(definitions: Vec<Value>, choice: ToolChoice, parallel: bool) -> Result<Tools, Refusal> {
        let mut names = BTreeSet::new();
        for (at, tool) in definitions.iter().enumerate() {
            let name = tool["function"]["name"].as_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| invalid(format!("tool {at} has no `function.name`")))?;
            if !names.insert(name.to_owned()) {
                return Err(invalid(format!("two tools have the name `{name}`")));
            }
        }
        match &choice {
            ToolChoice::Named(name) if !names.contains(name) => {
                return Err(invalid(format!("`tool_choice` names an unknown tool: `{name}`")));
            }
            ToolChoice::Required if names.is_empty() => {
                return Err(invalid("`tool_choice` is `required`, and the request has no tools"));
            }
            ToolChoice::Auto | ToolChoice::None | ToolChoice::Required | ToolChoice::Named(_) => {}
        }
        Ok(Tools { definitions, choice, parallel })
    }

    /// Whether the model may call tools.
    pub(crate) fn are_callable(&self) -> bool {
        !self.definitions.is_empty() && self.choice != ToolChoice::None
    }

    /// What the output must match if it must call tools.
    pub(crate) fn structured_output(&self, template: &str) -> Result<Option<StructuredOutput>, Refusal> {
        let (named, parallel) = match &self.choice {
            ToolChoice::Auto | ToolChoice::None => return Ok(None),
            ToolChoice::Required => (None, self.parallel),
            ToolChoice::Named(name) => (Some(name.as_str()), false),
        };
        let format = ToolFormat::of(template).ok_or_else(|| {
            invalid("`tool_choice` requires a call, and the chat template of the model has no known format of calls")
        })?;
        let is_chosen = |tool: &&Value| named.is_none_or(|name| tool["function"]["name"] == name);
        let tools = self.definitions.iter().filter(is_chosen);
        let (before, after, key) = match format {
            ToolFormat::Hermes => ("<tool_call>\n", "\n</tool_call>", "arguments"),
            ToolFormat::Llama => ("", "", "parameters"),
            ToolFormat::Mistral => ("[", "]", "arguments"),
        };
        // Between two calls.
        let separator = match format {
            ToolFormat::Hermes => Some("\n</tool_call>\n<tool_call>\n"),
            ToolFormat::Llama => None,
            ToolFormat::Mistral => Some(", "),
        };
        let quoted = |text: &str| Value::from(text).to_string();
        let more = separator
            .filter(|_| parallel)
            .map(|separator| format!(" ({} call){{0,{}}}", quoted(separator), MAX_CALLS - 1));
        let parts = [before, after].map(|text| if text.is_empty() { String::new() } else { quoted(text) });
        let mut grammar = format!("start: {} call{} {}\n", parts[0], more.unwrap_or_default(), parts[1]);
        let mut rules = Vec::new();
        for (at, tool) in tools.enumerate() {
            rules.push(format!("call{at}"));
            let none = || json!({ "type": "object", "properties": {}, "additionalProperties": false });
            let parameters = tool["function"].get("parameters").filter(|schema| !schema.is_null());
            let mut parameters = parameters.cloned().unwrap_or_else(none);
            let mut schema = Map::new();
            // References count from the root of a schema.
            for definitions in ["$defs", "definitions"] {
                let found = parameters.as_object_mut().and_then(|object| object.remove(definitions));
                schema.extend(found.map(|found| (definitions.to_owned(), found)));
            }
            let properties = json!({ "name": { "const": tool["function"]["name"] }, key: parameters });
            schema.insert("type".to_owned(), "object".into());
            schema.insert("properties".to_owned(), properties);
            schema.insert("required".to_owned(), json!(["name", key]));
            schema.insert("additionalProperties".to_owned(), false.into());
            StructuredOutput::bound_whitespace(&mut schema);
            let _ = writeln!(grammar, "call{at}: %json {}", Value::Object(schema));
        }
        let _ = writeln!(grammar, "call: {}", rules.join(" | "));
        Ok(Some(StructuredOutput::Grammar(grammar)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    fn tools(choice: ToolChoice) -> Result<Tools, String> {
        Tools::new(vec![tool("f"), tool("g")], choice, true).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_choice_names_a_tool_that_exists() {
        assert!(tools(ToolChoice::Named("f".to_owned())).is_ok());
        assert!(tools(ToolChoice::Named("h".to_owned())).is_err());
        assert!(Tools::new(Vec::new(), ToolChoice::Required, true).is_err());
        assert!(Tools::new(vec![tool("f"), tool("f")], ToolChoice::Auto, true).is_err());
        assert!(Tools::new(vec![json!({"type": "function"})], ToolChoice::Auto, true).is_err());
        let callable = |choice| tools(choice).is_ok_and(|tools| tools.are_callable());
        assert!(callable(ToolChoice::Auto) && !callable(ToolChoice::None));
        assert!(!Tools::default().are_callable());
    }

    #[test]
    fn a_required_call_has_the_grammar_of_the_template() {
        let grammar = |choice, template: &str| {
            let output = tools(choice).expect("they are valid").structured_output(template);
            match output.map_err(|refusal| refusal.message) {
                Ok(Some(StructuredOutput::Grammar(grammar))) => grammar,
                other => format!("{other:?}"),
            }
        };
        let hermes = grammar(ToolChoice::Required, "<tool_call>");
        assert!(
            hermes.starts_with(
                "start: \"<tool_call>\\n\" call (\"\\n</tool_call>\\n<tool_call>\\n\" call){0,7} "
            )
        );
        assert!(hermes.ends_with("call: call0 | call1\n"), "{hermes}");
        let named = grammar(ToolChoice::Named("g".to_owned()), "<|python_tag|>");
        assert!(named.starts_with("start:  call \n") && named.contains("{\"const\":\"g\"}"), "{named}");
        assert!(named.ends_with("call: call0\n"));
        assert_eq!(grammar(ToolChoice::Auto, "<tool_call>"), "Ok(None)");
        assert!(grammar(ToolChoice::Required, "no calls").starts_with("Err("));
    }
}
