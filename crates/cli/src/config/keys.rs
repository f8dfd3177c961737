//! The keys there are, read from the commented file itself: what it says is what holds.

use std::sync::LazyLock;

use toml::{Table, Value};

/// Every key with its meaning and its default.
pub(crate) const TEMPLATE: &str = include_str!("sconce.toml");

/// Sections whose keys may stand in the table of one model as well.
const OF_A_MODEL: [&str; 3] = ["Where models run", "What their files do not say", "What models accept"];

/// A key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    /// What is typed for it.
    pub(crate) flag: String,
    /// What it means.
    pub(crate) comment: String,
    pub(crate) default: Value,
    /// The section it stands in.
    pub(crate) section: String,
    /// Whether it is read again on SIGHUP.
    pub(crate) again: bool,
}

impl Key {
    /// Whether it may be said of one model alone.
    pub(crate) fn is_of_a_model(&self) -> bool {
        OF_A_MODEL.contains(&self.section.as_str())
    }

    /// A text from a flag or the environment as a value of its kind.
    pub(crate) fn read(&self, text: &str) -> Result<Value, String> {
        let read = match &self.default {
            Value::Boolean(_) => match text {
                "true" | "1" => Some(Value::Boolean(true)),
                "false" | "0" => Some(Value::Boolean(false)),
                _ => None,
            },
            Value::Integer(_) => text.parse().ok().map(Value::Integer),
            Value::Float(_) => text.parse().ok().map(Value::Float),
            Value::Array(_) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Some(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()))
            }
            Value::String(_) | Value::Datetime(_) | Value::Table(_) => Some(Value::String(text.to_owned())),
        };
        read.ok_or_else(|| self.otherwise(text))
    }

    /// A value from a file as one of its kind.
    pub(crate) fn fit(&self, value: &Value) -> Result<Value, String> {
        match (&self.default, value) {
            (Value::Float(_), Value::Integer(whole)) => Ok(Value::Float(*whole as f64)),
            (Value::String(_), Value::Boolean(_) | Value::Integer(_) | Value::Float(_)) => {
                Ok(Value::String(value.to_string()))
            }
            (default, value) if default.same_type(value) => Ok(value.clone()),
            (_, value) => Err(self.otherwise(&value.to_string())),
        }
    }

    fn otherwise(&self, text: &str) -> String {
        let kind = match &self.default {
            Value::Boolean(_) => "`true` or `false`",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Array(_) => "a list of texts",
            Value::String(_) | Value::Datetime(_) | Value::Table(_) => "a text",
        };
        format!("`{}` is {kind}, and not: {text}", self.name)
    }
}

/// The keys in their order.
pub(crate) fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(read);
    &KEYS
}

fn read() -> Vec<Key> {
    let (mut keys, mut section, mut comment) = (Vec::new(), String::new(), Vec::new());
    for line in TEMPLATE.lines() {
        let heading = line.strip_prefix("# == ").and_then(|rest| rest.strip_suffix(" =="));
        if let Some(heading) = heading {
            heading.clone_into(&mut section);
            comment.clear();
        } else if let Some(words) = line.strip_prefix('#') {
            comment.push(words.trim());
        } else if line.is_empty() {
            comment.clear();
        } else if let Some((name, default)) =
            line.parse::<Table>().ok().and_then(|one| one.into_iter().next())
        {
            let words = comment.join(" ");
            let again = words.strip_suffix(" (SIGHUP)").map(str::to_owned);
            let (flag, section) = (name.replace('_', "-"), section.clone());
            keys.push(Key {
                name,
                flag,
                default,
                section,
                again: again.is_some(),
                comment: again.unwrap_or(words),
            });
        }
    }
    keys
}

/// The name in `known` that is most like `name`.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let alike = |other: &&str| strsim::jaro_winkler(name, other);
    known.into_iter().max_by(|a, b| alike(a).total_cmp(&alike(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_file_is_a_key_that_is_explained() {
        let keys = keys();
        let whole: Table = TEMPLATE.parse().expect("the file is TOML");
        assert_eq!(keys.len(), whole.len(), "a key whose line could not be read");
        for key in keys {
            assert_eq!(whole.get(&key.name), Some(&key.default), "{}", key.name);
            let sentence = key.comment.len() > 10 && key.comment.ends_with('.') && !key.section.is_empty();
            assert!(sentence, "`{}` has no sentence before it: {}", key.name, key.comment);
        }
    }

    #[test]
    fn texts_become_what_the_default_is() {
        let keys = keys();
        let key = |name: &str| keys.iter().find(|key| key.name == name).expect("a key");
        assert_eq!(key("port").read("80"), Ok(Value::Integer(80)));
        assert_eq!(key("queue_seconds").read("3"), Ok(Value::Float(3.0)));
        assert_eq!(key("queue_seconds").fit(&Value::Integer(3)), Ok(Value::Float(3.0)));
        assert_eq!(key("normalize").fit(&Value::Boolean(true)), Ok(Value::String("true".to_owned())));
        assert_eq!(key("strict").read("1"), Ok(Value::Boolean(true)));
        let wrong = key("port").read("tcp://10.0.0.1:80").expect_err("no number");
        assert_eq!(wrong, "`port` is a whole number, and not: tcp://10.0.0.1:80");
        assert!(key("port").fit(&Value::Boolean(true)).is_err());
    }
}
