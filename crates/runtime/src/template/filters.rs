//! Filters of one value. Those of sequences are in `sequences.rs`.

use super::arguments::{Arguments, flag, optional_int, optional_text, text};
use super::budget::Budget;
use super::error::{TemplateError, fail, failed};
use super::methods::{capitalize, capitalize_words, items, join, mapped, replace, strip};
use super::operators;
use super::print::{JsonOptions, to_json, to_text};
use super::text::{Text, TextBuilder};
use super::value::{ListKind, Value};

type Result<T> = std::result::Result<T, TemplateError>;

/// Applies a filter; `None` if none of this name takes one value.
pub(super) fn apply(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<Option<Value>> {
    let string = || to_text(budget, value);
    let changed = |change: fn(&str) -> String| {
        let [] = arguments.bind([])?;
        let text = string()?;
        budget.examine(text.as_str().len())?;
        mapped(budget, &text, &change(text.as_str()))
    };
    let result = match name {
        "trim" => {
            let [characters] = arguments.bind(["chars"])?;
            let characters = optional_text(characters, "chars")?;
            Value::Text(strip(budget, &string()?, characters.as_ref().map(Text::as_str), (true, true))?)
        }
        "tojson" => Value::Text(json(budget, value, arguments)?),
        "string" => Value::Text(string()?),
        "safe" => value.clone(),
        "upper" => changed(str::to_uppercase)?,
        "lower" => changed(str::to_lowercase)?,
        "capitalize" => changed(capitalize)?,
        "title" => changed(title)?,
        "replace" => {
            let [old, new, count] = arguments.bind(["old", "new", "count"])?;
            let count = optional_int(count, "count")?.and_then(|count| usize::try_from(count).ok());
            Value::Text(replace(budget, &string()?, &text(old, "old")?, &text(new, "new")?, count)?)
        }
        "indent" => indent(budget, &string()?, arguments)?,
        "length" | "count" => Value::Int(length(budget, value)?),
        "default" | "d" => {
            let [default, boolean] = arguments.bind(["default_value", "boolean"])?;
            let replaces = match value {
                Value::Undefined => true,
                _ => flag(boolean.as_ref()) && !value.is_true(),
            };
            if replaces { default.unwrap_or(Value::text(budget, "")?) } else { value.clone() }
        }
        "items" => match value {
            Value::Undefined => Value::list(budget, Vec::new(), ListKind::Iterator)?,
            Value::Map(map) => items(budget, map, ListKind::Iterator)?,
            _ => return fail("the filter `items` takes a mapping"),
        },
        "int" => integer(value, arguments)?,
        "float" => {
            let [default] = arguments.bind(["default"])?;
            let parsed = match value {
                Value::Text(text) => number(text.as_str()),
                _ => value.as_float(),
            };
            parsed.map_or(default.unwrap_or(Value::Float(0.0)), Value::Float)
        }
        "abs" => match value {
            Value::Float(value) => Value::Float(value.abs()),
            _ => match value.as_int() {
                Some(value) => {
                    Value::Int(value.checked_abs().ok_or_else(|| failed("an integer is too large"))?)
                }
                None => return fail("the filter `abs` takes a number"),
            },
        },
        "round" => round(value, arguments)?,
        "wordcount" => {
            let text = string()?;
            budget.scan(text.as_str().len())?;
            let is_word = |character: char| character.is_alphanumeric() || character == '_';
            let words = text.as_str().split(|character| !is_word(character)).filter(|word| !word.is_empty());
            Value::Int(words.count() as i128)
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Number of items, entries or characters.
pub(super) fn length(budget: &Budget, value: &Value) -> Result<i128> {
    Ok(match value {
        Value::Undefined => 0,
        Value::Text(text) => {
            budget.scan(text.as_str().len())?;
            text.as_str().chars().count() as i128
        }
        Value::List(list) if list.kind != ListKind::Iterator => list.items.len() as i128,
        Value::Map(map) => map.entries.len() as i128,
        _ => return fail(format!("a value of type {} has no length", value.type_name())),
    })
}

/// `json.dumps` with the arguments that transformers accepts.
fn json(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Text> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sorted] = arguments.bind(names)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(indent)) => Some(indent.as_str().to_owned()),
        indent => {
            let width = usize::try_from(optional_int(indent, "indent")?.unwrap_or(0)).unwrap_or(0);
            budget.allocate(width)?;
            Some(" ".repeat(width))
        }
    };
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(Value::List(pair)) if pair.items.len() == 2 => {
            let part = |at: usize| Ok(text(Some(pair.items[at].clone()), "separators")?.as_str().to_owned());
            Some((part(0)?, part(1)?))
        }
        Some(_) => return fail("`separators` must be two texts"),
    };
    let options =
        JsonOptions { indent, separators, ascii: flag(ascii.as_ref()), sorted: flag(sorted.as_ref()) };
    to_json(budget, value, &options)
}

/// Jinja's `title`: words begin after white space, a hyphen or an opening bracket.
fn title(text: &str) -> String {
    capitalize_words(text, |before| !(before.is_whitespace() || "-({[<".contains(before)))
}

fn indent(budget: &Budget, value: &Text, arguments: &Arguments) -> Result<Value> {
    let [width, first, blank] = arguments.bind(["width", "first", "blank"])?;
    let by = match width {
        Some(Value::Text(by)) => by,
        width => {
            let width = usize::try_from(optional_int(width, "width")?.unwrap_or(4)).unwrap_or(0);
            budget.allocate(width)?;
            Text::of_template(&" ".repeat(width))
        }
    };
    let (first, blank) = (flag(first.as_ref()), flag(blank.as_ref()));
    let mut builder = TextBuilder::default();
    for (at, line) in value.as_str().split('\n').enumerate() {
        if at > 0 {
            builder.push_str(budget, "\n", false)?;
        }
        if (at > 0 && (blank || !line.is_empty())) || (at == 0 && first) {
            builder.push(budget, &by)?;
        }
        builder.push(budget, &value.part(budget, line)?)?;
    }
    Ok(Value::Text(builder.finish()))
}

fn number(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok()
}

fn integer(value: &Value, arguments: &Arguments) -> Result<Value> {
    let [default, base] = arguments.bind(["default", "base"])?;
    let base = optional_int(base, "base")?.unwrap_or(10);
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let Some(base) = base else { return fail("the base of an integer is between 2 and 36") };
    let parsed = match value {
        Value::Text(text) => {
            let whole = i128::from_str_radix(text.as_str().trim(), base).ok();
            whole.or_else(|| {
                number(text.as_str()).filter(|number| number.is_finite()).map(|number| number as i128)
            })
        }
        Value::Float(value) if value.is_finite() => Some(*value as i128),
        _ => value.as_int(),
    };
    Ok(parsed.map_or(default.unwrap_or(Value::Int(0)), Value::Int))
}

fn round(value: &Value, arguments: &Arguments) -> Result<Value> {
    let [precision, method] = arguments.bind(["precision", "method"])?;
    let precision = optional_int(precision, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let method = optional_text(method, "method")?;
    let number = value.as_float().ok_or_else(|| failed("the filter `round` takes a number"))?;
    let scale = 10f64.powi(precision);
    Ok(match (method.as_ref().map_or("common", Text::as_str), value) {
        ("common", Value::Int(_)) if precision >= 0 => value.clone(),
        ("common", _) => Value::Float((number * scale).round_ties_even() / scale),
        ("ceil", _) => Value::Float((number * scale).ceil() / scale),
        ("floor", _) => Value::Float((number * scale).floor() / scale),
        (other, _) => return fail(format!("no rounding method is called `{other}`")),
    })
}

/// The filter `join`, whose items are converted to text.
pub(super) fn join_values(budget: &Budget, values: &[Value], separator: Option<&Text>) -> Result<Value> {
    let texts = values.iter().map(|value| to_text(budget, value)).collect::<Result<Vec<_>>>()?;
    let empty = Text::of_template("");
    Ok(Value::Text(join(budget, &texts, separator.unwrap_or(&empty))?))
}

/// The sum of numbers.
pub(super) fn sum(budget: &Budget, values: &[Value], start: Value) -> Result<Value> {
    values.iter().try_fold(start, |sum, value| operators::add(budget, &sum, value))
}
