//! A model's config. Records which keys were read; an unsupported value is an error that names it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::ignored_keys;

/// An unsupported part of a config: `prenorm true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(pub(crate) String);

/// A config that records which keys were read.
pub struct Config<'a> {
    value: &'a Value,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Config<'a> {
    pub(crate) fn new(value: &'a Value) -> Config<'a> {
        Config { value, read: RefCell::default() }
    }

    /// The value of a key; null if it is missing.
    pub(crate) fn get(&self, key: &str) -> &'a Value {
        self.read.borrow_mut().insert(key.to_owned());
        &self.value[key]
    }

    /// Marks keys as read: they have no effect in this config.
    pub(crate) fn skip(&self, keys: &[&str]) {
        self.read.borrow_mut().extend(keys.iter().map(|&key| key.to_owned()));
    }

    /// The size under the first of `keys` that exists.
    pub(crate) fn size(&self, keys: &[&str]) -> Option<usize> {
        self.skip(keys);
        keys.iter().find_map(|key| self.get(key).as_u64()).and_then(|size| usize::try_from(size).ok())
    }

    /// The number under the first of `keys` that exists.
    pub(crate) fn number(&self, keys: &[&str], default: f64) -> f64 {
        self.skip(keys);
        keys.iter().find_map(|key| self.get(key).as_f64()).unwrap_or(default)
    }

    /// The boolean under a key.
    pub(crate) fn flag(&self, key: &str, default: bool) -> bool {
        self.get(key).as_bool().unwrap_or(default)
    }

    /// The string under the first of `keys` that exists.
    pub(crate) fn string(&self, keys: &[&str], default: &'a str) -> &'a str {
        self.skip(keys);
        keys.iter().find_map(|key| self.get(key).as_str()).unwrap_or(default)
    }

    /// Rejects a key unless it is missing, null or one of `allowed`.
    pub(crate) fn require_one_of(&self, key: &str, allowed: &[Value]) -> Result<(), Unsupported> {
        let value = self.get(key);
        if value.is_null() || allowed.contains(value) { Ok(()) } else { Err(self.unsupported(key)) }
    }

    /// Rejects keys unless they are missing, null, false, zero or empty.
    pub(crate) fn require_off(&self, keys: &[&str]) -> Result<(), Unsupported> {
        keys.iter()
            .try_for_each(|key| if is_off(self.get(key)) { Ok(()) } else { Err(self.unsupported(key)) })
    }

    /// The error for a key's value.
    pub(crate) fn unsupported(&self, key: &str) -> Unsupported {
        match self.get(key) {
            Value::String(word) => Unsupported(format!("{key} {word}")),
            value
            @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Unsupported(format!("{key} {value}"))
            }
        }
    }

    /// Keys with a value, that were not read and are not in the list of ignored keys.
    pub(crate) fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        let keys = self.value.as_object().into_iter().flatten();
        let unread = keys
            .filter(|(key, value)| !is_off(value) && !read.contains(*key) && !ignored_keys::is_ignored(key));
        unread.map(|(key, _)| key.clone()).collect()
    }

    /// Number of keys in the config that were read.
    pub(crate) fn matched_keys(&self) -> usize {
        self.read.borrow().iter().filter(|key| !self.value[key.as_str()].is_null()).count()
    }
}

/// Whether a value is null, false, zero or empty.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(word) => word.is_empty() || word == "none",
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
    }
}
