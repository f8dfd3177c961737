//! Arguments of functions, filters, tests and methods.

use super::error::{TemplateError, fail, failed};
use super::text::Text;
use super::value::Value;

/// Arguments of a call.
#[derive(Clone, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Arguments {
    /// The values of these parameters. Further arguments are an error.
    pub(super) fn bind<const N: usize>(&self, names: [&str; N]) -> Result<[Option<Value>; N], TemplateError> {
        if self.positional.len() > N {
            return fail(format!("{} arguments where {N} are allowed", self.positional.len()));
        }
        if let Some((name, _)) = self.named.iter().find(|(name, _)| !names.contains(&name.as_str())) {
            return fail(format!("no argument is called `{name}`"));
        }
        let mut at = 0;
        Ok(names.map(|name| {
            at += 1;
            self.positional.get(at - 1).cloned().or_else(|| self.named(name).cloned())
        }))
    }

    /// The named argument.
    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(named, _)| named == name).map(|(_, value)| value)
    }

    /// The arguments without the first positional one.
    pub(super) fn rest(&self) -> Arguments {
        let positional = self.positional.iter().skip(1).cloned().collect();
        Arguments { positional, named: self.named.clone() }
    }
}

/// A required text.
pub(super) fn text(value: Option<Value>, name: &str) -> Result<Text, TemplateError> {
    match value {
        Some(Value::Text(text)) => Ok(text),
        Some(value) => fail(format!("`{name}` must be a text, not {}", value.type_name())),
        None => fail(format!("`{name}` is missing")),
    }
}

/// An optional text; `none` means absent.
pub(super) fn optional_text(value: Option<Value>, name: &str) -> Result<Option<Text>, TemplateError> {
    match value {
        None | Some(Value::None) => Ok(None),
        some => text(some, name).map(Some),
    }
}

/// An optional integer; `none` means absent.
pub(super) fn optional_int(value: Option<Value>, name: &str) -> Result<Option<i128>, TemplateError> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => {
            let wrong = || failed(format!("`{name}` must be an integer, not {}", value.type_name()));
            value.as_int().map(Some).ok_or_else(wrong)
        }
    }
}

/// A flag, false by default.
pub(super) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}
