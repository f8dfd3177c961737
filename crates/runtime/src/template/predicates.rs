//! Tests of expressions: `is defined`, `is string`, ….

use std::cmp::Ordering;

use super::arguments::Arguments;
use super::budget::Budget;
use super::error::{TemplateError, fail};
use super::methods::is_cased;
use super::operators::{contains, remainder};
use super::value::{ListKind, Value};

/// Whether a value passes a test.
pub(super) fn test(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<bool, TemplateError> {
    let [other] = arguments.bind(["other"])?;
    let other = || match &other {
        Some(other) => Ok(other),
        None => fail(format!("the test `{name}` needs an argument")),
    };
    let order = || value.compare(budget, other()?);
    let is_multiple = |of: i128| match remainder(value, &Value::Int(of))? {
        Value::Int(rest) => Ok(rest),
        _ => fail(format!("the test `{name}` takes integers")),
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "number" => value.as_float().is_some(),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "iterable" => matches!(value, Value::Text(_) | Value::List(_) | Value::Map(_) | Value::Undefined),
        "sequence" => match value {
            Value::List(list) => matches!(list.kind, ListKind::List | ListKind::Tuple),
            _ => matches!(value, Value::Text(_) | Value::Map(_)),
        },
        "callable" => matches!(value, Value::Function(_) | Value::Method(_) | Value::Macro(_)),
        "lower" | "upper" => {
            let text = super::print::to_text(budget, value)?;
            match name {
                "lower" => is_cased(text.as_str(), char::is_lowercase, char::is_uppercase),
                _ => is_cased(text.as_str(), char::is_uppercase, char::is_lowercase),
            }
        }
        "eq" | "equalto" | "==" => value.equals(budget, other()?)?,
        "ne" | "!=" => !value.equals(budget, other()?)?,
        "sameas" => match (value, other()?) {
            (Value::Bool(one), Value::Bool(other)) => one == other,
            (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
            (value, other) => value.equals(budget, other)?,
        },
        "lt" | "lessthan" | "<" => order()? == Ordering::Less,
        "le" | "<=" => order()? != Ordering::Greater,
        "gt" | "greaterthan" | ">" => order()? == Ordering::Greater,
        "ge" | ">=" => order()? != Ordering::Less,
        "in" => contains(budget, other()?, value)?,
        "odd" => is_multiple(2)? == 1,
        "even" => is_multiple(2)? == 0,
        "divisibleby" => match other()?.as_int() {
            Some(of) => is_multiple(of)? == 0,
            None => return fail("the test `divisibleby` takes integers"),
        },
        _ => return fail(format!("no test is called `{name}`")),
    })
}
