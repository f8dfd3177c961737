//! A model's config as its family reads it: keys that were read are noted, and a value that a family can't honour is
//! a refusal that names it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::ignored_keys;

/// What a config says that no description honours: `prenorm true`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported(pub(crate) String);

/// A config on its way to a description.
pub struct Config<'a> {
    value: &'a Value,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Config<'a> {
    pub(crate) fn new(value: &'a Value) -> Config<'a> {
        Config { value, read: RefCell::default() }
    }

    /// The value of a key, null where there is none.
    pub(crate) fn get(&self, key: &str) -> &'a Value {
        self.read.borrow_mut().insert(key.to_owned());
        &self.value[key]
    }

    /// Notes keys as read: in this config they have no effect.
    pub(crate) fn skip(&self, keys: &[&str]) {
        self.read.borrow_mut().extend(keys.iter().map(|&key| key.to_owned()));
    }

    /// A size under the first of `keys` that is there.
    pub(crate) fn size(&self, keys: &[&str]) -> Option<usize> {
        self.skip(keys);
        keys.iter().find_map(|key| self.get(key).as_u64()).and_then(|size| usize::try_from(size).ok())
    }

    /// A number under the first of `keys` that is there.
    pub(crate) fn number(&self, keys: &[&str], default: f64) -> f64 {
        self.skip(keys);
        keys.iter().find_map(|key| self.get(key).as_f64()).unwrap_or(default)
    }

    /// A flag.
    pub(crate) fn flag(&self, key: &str, default: bool) -> bool {
        self.get(key).as_bool().unwrap_or(default)
    }

    /// A word under the first of `keys` that is there.
    pub(crate) fn word(&self, keys: &[&str], default: &'a str) -> &'a str {
        self.skip(keys);
        keys.iter().find_map(|key| self.get(key).as_str()).unwrap_or(default)
    }

    /// A key that may be there with these values alone, or null.
    pub(crate) fn only(&self, key: &str, allowed: &[Value]) -> Result<(), Unsupported> {
        let value = self.get(key);
        if value.is_null() || allowed.contains(value) { Ok(()) } else { Err(self.unsupported(key)) }
    }

    /// Keys that may be there with the value false, or zero, or null.
    pub(crate) fn none_of(&self, keys: &[&str]) -> Result<(), Unsupported> {
        keys.iter()
            .try_for_each(|key| if is_off(self.get(key)) { Ok(()) } else { Err(self.unsupported(key)) })
    }

    /// The refusal of a key's value.
    pub(crate) fn unsupported(&self, key: &str) -> Unsupported {
        match self.get(key) {
            Value::String(word) => Unsupported(format!("{key} {word}")),
            value
            @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                Unsupported(format!("{key} {value}"))
            }
        }
    }

    /// The keys that switch something on, that nobody read and that are not known to leave hidden states as they are.
    pub(crate) fn unread(&self) -> Vec<String> {
        let read = self.read.borrow();
        let keys = self.value.as_object().into_iter().flatten();
        let unread = keys
            .filter(|(key, value)| !is_off(value) && !read.contains(*key) && !ignored_keys::is_ignored(key));
        unread.map(|(key, _)| key.clone()).collect()
    }

    /// How many keys were read that are there.
    pub(crate) fn shared(&self) -> usize {
        self.read.borrow().iter().filter(|key| !self.value[key.as_str()].is_null()).count()
    }
}

/// Whether a value switches nothing on.
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
