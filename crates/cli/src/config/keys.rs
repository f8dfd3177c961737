//! The configuration keys, parsed from the commented template `sconce.toml`.

use std::sync::LazyLock;

use toml::{Table, Value};

/// The template: every key with its description and default.
pub(crate) const TEMPLATE: &str = include_str!("sconce.toml");

/// Sections whose keys can also be set per model.
const PER_MODEL: [&str; 3] = ["Placement", "Model overrides", "Model inputs"];

/// A configuration key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    /// Its command-line flag, without the dashes.
    pub(crate) flag: String,
    /// Its description.
    pub(crate) comment: String,
    pub(crate) default: Value,
    /// Its section in the template.
    pub(crate) section: String,
    /// Whether SIGHUP reloads it.
    pub(crate) reloadable: bool,
}

impl Key {
    /// Whether it can be set per model.
    pub(crate) fn is_per_model(&self) -> bool {
        PER_MODEL.contains(&self.section.as_str())
    }

    /// Parses the text of a flag or an environment variable.
    pub(crate) fn parse(&self, text: &str) -> Result<Value, String> {
        let parsed = match &self.default {
            Value::Boolean(_) => match text {
                "true" | "1" => Some(Value::Boolean(true)),
                "false" | "0" => Some(Value::Boolean(false)),
                _ => None,
            },
            Value::Integer(_) => text.parse().ok().or_else(|| self.megabytes(text)).map(Value::Integer),
            Value::Float(_) => text.parse().ok().map(Value::Float),
            Value::Array(_) => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Some(Value::Array(items.map(|item| Value::String(item.to_owned())).collect()))
            }
            Value::String(_) | Value::Datetime(_) | Value::Table(_) => Some(Value::String(text.to_owned())),
        };
        parsed.ok_or_else(|| self.type_error(text))
    }

    /// Whether the value is a size in MB, by the comment of the template.
    fn is_in_megabytes(&self) -> bool {
        self.comment.contains(" in MB")
    }

    /// A size with a unit, such as `4GB`, in MB. Only for keys in MB.
    fn megabytes(&self, text: &str) -> Option<i64> {
        const UNITS: [(&str, f64); 6] = [
            ("GIB", 1_073.741_824),
            ("MIB", 1.048_576),
            ("GB", 1000.0),
            ("MB", 1.0),
            ("G", 1000.0),
            ("M", 1.0),
        ];
        let text = text.to_uppercase();
        let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
        let number: f64 = number.trim_end().parse().ok()?;
        (self.is_in_megabytes() && (0.0..1e12).contains(&number)).then(|| (number * unit).round() as i64)
    }

    /// Converts a value of the file to the type of the default.
    pub(crate) fn coerce(&self, value: &Value) -> Result<Value, String> {
        match (&self.default, value) {
            (Value::Float(_), Value::Integer(whole)) => Ok(Value::Float(*whole as f64)),
            (Value::String(_), Value::Boolean(_) | Value::Integer(_) | Value::Float(_)) => {
                Ok(Value::String(value.to_string()))
            }
            (default, value) if default.same_type(value) => Ok(value.clone()),
            (Value::Integer(_), Value::String(size)) => {
                self.megabytes(size).map(Value::Integer).ok_or_else(|| self.type_error(size))
            }
            (_, value) => Err(self.type_error(&value.to_string())),
        }
    }

    fn type_error(&self, text: &str) -> String {
        let kind = match &self.default {
            Value::Boolean(_) => "`true` or `false`",
            Value::Integer(_) if self.is_in_megabytes() => "a number of MB, or a size such as `4GB`",
            Value::Integer(_) => "an integer",
            Value::Float(_) => "a number",
            Value::Array(_) => "a list of strings",
            Value::String(_) | Value::Datetime(_) | Value::Table(_) => "a string",
        };
        format!("`{}` must be {kind}: {text}", self.name)
    }
}

/// All keys, in the order of the template.
pub(crate) fn keys() -> &'static [Key] {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(parse_template);
    &KEYS
}

fn parse_template() -> Vec<Key> {
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
            let reloadable = words.strip_suffix(" (SIGHUP)").map(str::to_owned);
            let (flag, section) = (name.replace('_', "-"), section.clone());
            keys.push(Key {
                name,
                flag,
                default,
                section,
                reloadable: reloadable.is_some(),
                comment: reloadable.unwrap_or(words),
            });
        }
    }
    keys
}

/// The known name that is most similar to `name`.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |other: &&str| strsim::jaro_winkler(name, other);
    known.into_iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_template_is_a_documented_key() {
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
    fn values_are_parsed_to_the_type_of_the_default() {
        let keys = keys();
        let key = |name: &str| keys.iter().find(|key| key.name == name).expect("a key");
        assert_eq!(key("port").parse("80"), Ok(Value::Integer(80)));
        assert_eq!(key("queue_seconds").parse("3"), Ok(Value::Float(3.0)));
        assert_eq!(key("queue_seconds").coerce(&Value::Integer(3)), Ok(Value::Float(3.0)));
        assert_eq!(key("normalize").coerce(&Value::Boolean(true)), Ok(Value::String("true".to_owned())));
        assert_eq!(key("strict").parse("1"), Ok(Value::Boolean(true)));
        let wrong = key("port").parse("tcp://10.0.0.1:80").expect_err("no number");
        assert_eq!(wrong, "`port` must be an integer: tcp://10.0.0.1:80");
        assert!(key("port").coerce(&Value::Boolean(true)).is_err());
    }
}
