//! Values of a template, with the semantics of Python.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value as Json;

use super::budget::{Budget, MAX_NESTING};
use super::error::{TemplateError, fail};
use super::text::Text;

/// The usual roles. Templates build control tokens from them, as in `'<|' + message.role + '|>'`, so they are no text of
/// the caller.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// A value of a template.
#[derive(Clone)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Rc<List>),
    Map(Rc<Map>),
    Namespace(Rc<RefCell<BTreeMap<String, Value>>>),
    Loop(Rc<Loop>),
    /// A function of the environment.
    Function(&'static str),
    /// A method of a value.
    Method(Rc<(Value, String)>),
    /// A macro, by its index in the evaluator.
    Macro(usize),
}

/// A sequence.
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) kind: ListKind,
    nesting: usize,
}

/// What a sequence is in Python.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    List,
    Tuple,
    /// Keys, values or items of a mapping: has a length, and no index.
    View,
    /// An iterator: is always true, and has no length or index.
    Iterator,
}

/// A mapping in insertion order. Its keys are texts, numbers, booleans or `none`.
pub(super) struct Map {
    pub(super) entries: Vec<(Value, Value)>,
    nesting: usize,
}

/// State of a running loop.
pub(super) struct Loop {
    pub(super) items: Vec<Value>,
    pub(super) index: Cell<usize>,
    pub(super) depth: usize,
}

impl Map {
    pub(super) fn get(&self, budget: &Budget, key: &str) -> Result<Option<&Value>, TemplateError> {
        budget.step(1 + self.entries.len() / 16)?;
        let is_it = |(name, _): &&(Value, Value)| name.as_text().is_some_and(|name| name.as_str() == key);
        Ok(self.entries.iter().find(is_it).map(|(_, value)| value))
    }

    /// The value of a key of any type.
    pub(super) fn value(&self, budget: &Budget, key: &Value) -> Result<Option<&Value>, TemplateError> {
        if let Value::Text(key) = key {
            return self.get(budget, key.as_str());
        }
        for (known, value) in &self.entries {
            if known.equals(budget, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

impl Value {
    pub(super) fn list(budget: &Budget, items: Vec<Value>, kind: ListKind) -> Result<Value, TemplateError> {
        budget.step(items.len())?;
        budget.allocate(size_of::<List>() + size_of::<Value>() * items.len())?;
        let nesting = nested(items.iter())?;
        Ok(Value::List(Rc::new(List { items, kind, nesting })))
    }

    /// A mapping with these entries, whose keys differ.
    pub(super) fn map(budget: &Budget, entries: Vec<(Value, Value)>) -> Result<Value, TemplateError> {
        budget.step(entries.len())?;
        budget.allocate(size_of::<Map>() + size_of::<(Value, Value)>() * entries.len())?;
        let nesting = nested(entries.iter().map(|(_, value)| value))?;
        Ok(Value::Map(Rc::new(Map { entries, nesting })))
    }

    /// Text of the template.
    pub(super) fn text(budget: &Budget, text: &str) -> Result<Value, TemplateError> {
        Ok(Value::Text(Text::new(budget, text, false)?))
    }

    /// A value from JSON. Its texts and keys are the caller's, or the template's.
    pub(super) fn from_json(budget: &Budget, json: &Json, of_caller: bool) -> Result<Value, TemplateError> {
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(integer), _) => Value::Int(integer.into()),
                (None, Some(integer)) => Value::Int(integer.into()),
                (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Value::Text(Text::new(budget, text, of_caller)?),
            Json::Array(items) => {
                let items = items.iter().map(|item| Value::from_json(budget, item, of_caller));
                let items = items.collect::<Result<_, _>>()?;
                Value::list(budget, items, ListKind::List)?
            }
            Json::Object(entries) => {
                let entry = |(key, value): (&String, &Json)| {
                    let is_role = key == "role" && value.as_str().is_some_and(|role| ROLES.contains(&role));
                    let value = Value::from_json(budget, value, of_caller && !is_role)?;
                    Ok((Value::Text(Text::new(budget, key, of_caller)?), value))
                };
                Value::map(budget, entries.iter().map(entry).collect::<Result<_, TemplateError>>()?)?
            }
        })
    }

    fn nesting(&self) -> usize {
        match self {
            Value::List(list) => list.nesting,
            Value::Map(map) => map.nesting,
            Value::Undefined
            | Value::None
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Float(_)
            | Value::Text(_)
            | Value::Namespace(_)
            | Value::Loop(_)
            | Value::Function(_)
            | Value::Method(_)
            | Value::Macro(_) => 0,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.as_str().is_empty(),
            Value::List(list) => list.kind == ListKind::Iterator || !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Namespace(_)
            | Value::Loop(_)
            | Value::Function(_)
            | Value::Method(_)
            | Value::Macro(_) => true,
        }
    }

    /// The type's name in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple => "tuple",
                ListKind::View => "dict view",
                ListKind::Iterator => "iterator",
            },
            Value::Map(_) => "dict",
            Value::Namespace(_) => "namespace",
            Value::Loop(_) => "loop",
            Value::Function(_) | Value::Method(_) => "function",
            Value::Macro(_) => "macro",
        }
    }

    pub(super) fn as_text(&self) -> Option<&Text> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value of an integer or a boolean.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some((*value).into()),
            _ => None,
        }
    }

    /// The value of a number or a boolean.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    /// The items of an iteration: of a list, the keys of a mapping, the characters of a text.
    pub(super) fn items(&self, budget: &Budget) -> Result<Vec<Value>, TemplateError> {
        let items: Vec<Value> = match self {
            Value::Undefined => Vec::new(),
            Value::List(list) => {
                budget.allocate(size_of::<Value>() * list.items.len())?;
                list.items.clone()
            }
            Value::Map(map) => map.entries.iter().map(|(key, _)| key.clone()).collect(),
            Value::Text(text) => {
                budget.allocate(2 * size_of::<Value>() * text.as_str().len())?;
                let characters = text.as_str().char_indices();
                let character = |(at, character): (usize, char)| {
                    Ok(Value::Text(text.slice(budget, at..at + character.len_utf8())?))
                };
                characters.map(character).collect::<Result<_, TemplateError>>()?
            }
            _ => return fail(format!("a value of type {} is not iterable", self.type_name())),
        };
        budget.step(items.len())?;
        Ok(items)
    }

    /// Equality as in Python: numbers by value, mappings in any order.
    pub(super) fn equals(&self, budget: &Budget, other: &Value) -> Result<bool, TemplateError> {
        budget.step(1)?;
        if let (Some(one), Some(other)) = (self.as_int(), other.as_int()) {
            return Ok(one == other);
        }
        if let (Some(one), Some(other)) = (self.as_float(), other.as_float()) {
            #[expect(clippy::float_cmp, reason = "`==` of the template")]
            return Ok(one == other);
        }
        Ok(match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Text(one), Value::Text(other)) => {
                budget.scan(one.as_str().len())?;
                one == other
            }
            (Value::List(one), Value::List(other)) => {
                if one.kind != other.kind || one.items.len() != other.items.len() {
                    return Ok(false);
                }
                for (one, other) in one.items.iter().zip(&other.items) {
                    if !one.equals(budget, other)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(one), Value::Map(other)) => {
                if one.entries.len() != other.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &one.entries {
                    match other.value(budget, key)? {
                        Some(other) if value.equals(budget, other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(one), Value::Namespace(other)) => Rc::ptr_eq(one, other),
            (Value::Macro(one), Value::Macro(other)) => one == other,
            _ => false,
        })
    }

    /// Order as in Python. Values of different types have none.
    pub(super) fn compare(&self, budget: &Budget, other: &Value) -> Result<Ordering, TemplateError> {
        budget.step(1)?;
        let unordered =
            || format!("values of type {} and {} have no order", self.type_name(), other.type_name());
        if let (Some(one), Some(other)) = (self.as_int(), other.as_int()) {
            return Ok(one.cmp(&other));
        }
        if let (Some(one), Some(other)) = (self.as_float(), other.as_float()) {
            // A NaN is neither less nor greater. No template compares one.
            return Ok(one.partial_cmp(&other).unwrap_or(Ordering::Equal));
        }
        match (self, other) {
            (Value::Text(one), Value::Text(other)) => {
                budget.scan(one.as_str().len())?;
                Ok(one.as_str().cmp(other.as_str()))
            }
            (Value::List(one), Value::List(other)) if one.kind == other.kind => {
                for (one, other) in one.items.iter().zip(&other.items) {
                    if !one.equals(budget, other)? {
                        return one.compare(budget, other);
                    }
                }
                Ok(one.items.len().cmp(&other.items.len()))
            }
            _ => fail(unordered()),
        }
    }
}

/// Nesting of a container of these values.
fn nested<'a>(values: impl Iterator<Item = &'a Value>) -> Result<usize, TemplateError> {
    let mut deepest = 0;
    for value in values {
        // A namespace changes, and could contain itself.
        if matches!(value, Value::Namespace(_) | Value::Loop(_) | Value::Method(_)) {
            return fail(format!("a {} can't be stored in a list or mapping", value.type_name()));
        }
        deepest = deepest.max(value.nesting());
    }
    if deepest >= MAX_NESTING {
        return fail(format!("lists and mappings nest more than {MAX_NESTING} deep"));
    }
    Ok(deepest + 1)
}
