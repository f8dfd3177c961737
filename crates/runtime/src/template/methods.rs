//! Methods of texts, lists and mappings, as in Python.

use super::arguments::{Arguments, flag, optional_int, optional_text, text};
use super::budget::Budget;
use super::error::{TemplateError, fail};
use super::print::to_text;
use super::text::{Text, TextBuilder};
use super::value::{ListKind, Map, Value};

type Result<T> = std::result::Result<T, TemplateError>;

const OF_TEXT: [&str; 32] = [
    "capitalize",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "join",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
    "casefold",
];

/// Whether a value has this method. Methods that change a value are not available.
pub(super) fn has_method(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => OF_TEXT.contains(&name),
        Value::Map(_) => ["items", "keys", "values", "get", "copy"].contains(&name),
        Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
            ["index", "count"].contains(&name)
        }
        Value::Loop(_) => name == "cycle",
        _ => false,
    }
}

/// Calls a method.
pub(super) fn call(budget: &Budget, value: &Value, name: &str, arguments: &Arguments) -> Result<Value> {
    match value {
        Value::Text(text) => of_text(budget, text, name, arguments),
        Value::Map(map) => of_map(budget, map, value, name, arguments),
        Value::List(list) => {
            let [wanted] = arguments.bind(["value"])?;
            let wanted = wanted.unwrap_or(Value::Undefined);
            let (mut count, mut first) = (0, None);
            for (at, item) in list.items.iter().enumerate() {
                if item.equals(budget, &wanted)? {
                    count += 1;
                    first = first.or(Some(at));
                }
            }
            match (name, first) {
                ("count", _) => Ok(Value::Int(count)),
                (_, Some(at)) => Ok(Value::Int(at as i128)),
                (_, None) => fail("the value is not in the list"),
            }
        }
        Value::Loop(state) => {
            let count = arguments.positional.len();
            if count == 0 {
                fail("no items for cycling given")
            } else {
                Ok(arguments.positional[state.index.get() % count].clone())
            }
        }
        _ => fail(format!("a value of type {} has no method `{name}`", value.type_name())),
    }
}

fn of_map(budget: &Budget, map: &Map, value: &Value, name: &str, arguments: &Arguments) -> Result<Value> {
    if name == "get" {
        let [key, default] = arguments.bind(["key", "default"])?;
        let default = default.unwrap_or(Value::None);
        return Ok(map.value(budget, &key.unwrap_or(Value::Undefined))?.cloned().unwrap_or(default));
    }
    let [] = arguments.bind([])?;
    let entries = map.entries.iter();
    let items = match name {
        "items" => return items(budget, map, ListKind::View),
        "keys" => entries.map(|(key, _)| key.clone()).collect(),
        "values" => entries.map(|(_, value)| value.clone()).collect(),
        _ => return Ok(value.clone()),
    };
    Value::list(budget, items, ListKind::View)
}

/// Key and value of each entry.
pub(super) fn items(budget: &Budget, map: &Map, kind: ListKind) -> Result<Value> {
    let item = |(key, value): &(Value, Value)| {
        Value::list(budget, vec![key.clone(), value.clone()], ListKind::Tuple)
    };
    Value::list(budget, map.entries.iter().map(item).collect::<Result<_>>()?, kind)
}

fn of_text(budget: &Budget, this: &Text, name: &str, arguments: &Arguments) -> Result<Value> {
    let string = this.as_str();
    budget.examine(string.len())?;
    let all = |test: fn(char) -> bool| Ok(Value::Bool(!string.is_empty() && string.chars().all(test)));
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = arguments.bind(["chars"])?;
            let characters = optional_text(characters, "chars")?;
            let sides = (name != "rstrip", name != "lstrip");
            Ok(Value::Text(strip(budget, this, characters.as_ref().map(Text::as_str), sides)?))
        }
        "startswith" | "endswith" => {
            let [parts] = arguments.bind(["prefix"])?;
            let is_at = |part: &str| {
                if name == "startswith" { string.starts_with(part) } else { string.ends_with(part) }
            };
            match parts {
                Some(Value::List(list)) if list.kind == ListKind::Tuple => {
                    let found = list.items.iter().filter_map(Value::as_text).any(|part| is_at(part.as_str()));
                    Ok(Value::Bool(found))
                }
                part => Ok(Value::Bool(is_at(text(part, "prefix")?.as_str()))),
            }
        }
        "removeprefix" | "removesuffix" => {
            let [part] = arguments.bind(["prefix"])?;
            let part = text(part, "prefix")?;
            let rest = match name {
                "removeprefix" => string.strip_prefix(part.as_str()),
                _ => string.strip_suffix(part.as_str()),
            };
            Ok(Value::Text(this.part(budget, rest.unwrap_or(string))?))
        }
        "split" | "rsplit" => {
            let [separator, most] = arguments.bind(["sep", "maxsplit"])?;
            let most = optional_int(most, "maxsplit")?.and_then(|most| usize::try_from(most).ok());
            split(budget, this, optional_text(separator, "sep")?.as_ref(), most, name == "rsplit")
        }
        "splitlines" => {
            let [ends] = arguments.bind(["keepends"])?;
            lines(budget, this, flag(ends.as_ref()))
        }
        "partition" | "rpartition" => {
            let [separator] = arguments.bind(["sep"])?;
            let separator = text(separator, "sep")?;
            let at = if name == "partition" {
                string.find(separator.as_str())
            } else {
                string.rfind(separator.as_str())
            };
            let end = string.len();
            let cuts = match at {
                Some(at) => [0..at, at..at + separator.as_str().len(), at + separator.as_str().len()..end],
                None if name == "partition" => [0..end, end..end, end..end],
                None => [0..0, 0..0, 0..end],
            };
            let parts = cuts.map(|cut| this.slice(budget, cut).map(Value::Text));
            Value::list(budget, parts.into_iter().collect::<Result<_>>()?, ListKind::Tuple)
        }
        "replace" => {
            let [old, new, count] = arguments.bind(["old", "new", "count"])?;
            let count = optional_int(count, "count")?.and_then(|count| usize::try_from(count).ok());
            Ok(Value::Text(replace(budget, this, &text(old, "old")?, &text(new, "new")?, count)?))
        }
        "find" | "rfind" | "index" => {
            let [part] = arguments.bind(["sub"])?;
            let part = text(part, "sub")?;
            let at = if name == "rfind" { string.rfind(part.as_str()) } else { string.find(part.as_str()) };
            match at {
                Some(at) => Ok(Value::Int(string[..at].chars().count() as i128)),
                None if name == "index" => fail("substring not found"),
                None => Ok(Value::Int(-1)),
            }
        }
        "count" => {
            let [part] = arguments.bind(["sub"])?;
            Ok(Value::Int(string.matches(text(part, "sub")?.as_str()).count() as i128))
        }
        "join" => {
            let [values] = arguments.bind(["iterable"])?;
            let values = values.unwrap_or(Value::None).items(budget)?;
            let texts =
                values.into_iter().map(|value| text(Some(value), "item")).collect::<Result<Vec<_>>>()?;
            Ok(Value::Text(join(budget, &texts, this)?))
        }
        "format" => format(budget, this, arguments),
        "upper" => mapped(budget, this, &string.to_uppercase()),
        "lower" | "casefold" => mapped(budget, this, &string.to_lowercase()),
        "capitalize" => mapped(budget, this, &capitalize(string)),
        "title" => mapped(budget, this, &title(string)),
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => Ok(Value::Bool(string.is_ascii())),
        "islower" => Ok(Value::Bool(is_cased(string, char::is_lowercase, char::is_uppercase))),
        "isupper" => Ok(Value::Bool(is_cased(string, char::is_uppercase, char::is_lowercase))),
        _ => fail(format!("a text has no method `{name}`")),
    }
}

/// Whether a character is of one case, and none of the other.
pub(super) fn is_cased(text: &str, one: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.chars().any(one) && !text.chars().any(other)
}

/// A changed text: the caller's as a whole if a part of the original is.
pub(super) fn mapped(budget: &Budget, original: &Text, changed: &str) -> Result<Value> {
    Ok(Value::Text(Text::new(budget, changed, original.has_caller())?))
}

/// White space of Python's `str.strip`.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Strips white space, or these characters, at the start and at the end.
pub(super) fn strip(
    budget: &Budget,
    text: &Text,
    characters: Option<&str>,
    (start, end): (bool, bool),
) -> Result<Text> {
    let strips = |character: char| match characters {
        Some(characters) => characters.contains(character),
        None => is_space(character),
    };
    let mut rest = text.as_str();
    if start {
        rest = rest.trim_start_matches(strips);
    }
    if end {
        rest = rest.trim_end_matches(strips);
    }
    text.part(budget, rest)
}

fn split(
    budget: &Budget,
    this: &Text,
    separator: Option<&Text>,
    most: Option<usize>,
    from_end: bool,
) -> Result<Value> {
    let (string, most) = (this.as_str(), most.unwrap_or(usize::MAX));
    let parts: Vec<&str> = match (separator, from_end) {
        (Some(separator), _) if separator.as_str().is_empty() => return fail("empty separator"),
        (Some(separator), false) => string.splitn(most.saturating_add(1), separator.as_str()).collect(),
        (Some(separator), true) => {
            let mut parts: Vec<&str> = string.rsplitn(most.saturating_add(1), separator.as_str()).collect();
            parts.reverse();
            parts
        }
        (None, false) => {
            let (mut parts, mut rest) = (Vec::new(), string.trim_start_matches(is_space));
            while !rest.is_empty() {
                let end = if parts.len() < most { rest.find(is_space) } else { None };
                let word = &rest[..end.unwrap_or(rest.len())];
                parts.push(word);
                rest = rest[word.len()..].trim_start_matches(is_space);
            }
            parts
        }
        (None, true) => {
            let (mut parts, mut rest) = (Vec::new(), string.trim_end_matches(is_space));
            while !rest.is_empty() {
                let start = if parts.len() < most { rest.rfind(is_space) } else { None };
                let after = |at: usize| at + rest[at..].chars().next().map_or(0, char::len_utf8);
                let word = &rest[start.map_or(0, after)..];
                parts.push(word);
                rest = rest[..rest.len() - word.len()].trim_end_matches(is_space);
            }
            parts.reverse();
            parts
        }
    };
    budget.step(parts.len())?;
    let parts = parts.into_iter().map(|part| this.part(budget, part).map(Value::Text));
    Value::list(budget, parts.collect::<Result<_>>()?, ListKind::List)
}

fn lines(budget: &Budget, this: &Text, keep_ends: bool) -> Result<Value> {
    let ends = ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), this.as_str());
    while !rest.is_empty() {
        let end = rest.find(ends).unwrap_or(rest.len());
        let after = &rest[end..];
        let ending =
            if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
        let line = &rest[..if keep_ends { end + ending } else { end }];
        lines.push(Value::Text(this.part(budget, line)?));
        rest = &rest[end + ending..];
    }
    Value::list(budget, lines, ListKind::List)
}

/// Replaces `old` by `new`, at most `count` times.
pub(super) fn replace(
    budget: &Budget,
    this: &Text,
    old: &Text,
    new: &Text,
    count: Option<usize>,
) -> Result<Text> {
    let (string, mut builder, mut done) = (this.as_str(), TextBuilder::default(), 0);
    for (at, found) in string.match_indices(old.as_str()).take(count.unwrap_or(usize::MAX)) {
        builder.push(budget, &this.slice(budget, done..at)?)?;
        builder.push(budget, new)?;
        done = at + found.len();
    }
    builder.push(budget, &this.slice(budget, done..string.len())?)?;
    Ok(builder.finish())
}

/// Joins texts.
pub(super) fn join(budget: &Budget, texts: &[Text], separator: &Text) -> Result<Text> {
    let mut builder = TextBuilder::default();
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            builder.push(budget, separator)?;
        }
        builder.push(budget, text)?;
    }
    Ok(builder.finish())
}

/// `str.format` with `{}`, `{0}` and `{name}`.
fn format(budget: &Budget, this: &Text, arguments: &Arguments) -> Result<Value> {
    let (string, mut builder, mut at, mut next) = (this.as_str(), TextBuilder::default(), 0, 0);
    while let Some(found) = string[at..].find(['{', '}']) {
        let brace = at + found;
        builder.push(budget, &this.slice(budget, at..brace)?)?;
        if string[brace..].starts_with("{{") || string[brace..].starts_with("}}") {
            builder.push(budget, &this.slice(budget, brace..brace + 1)?)?;
            at = brace + 2;
            continue;
        }
        let Some(end) = string[brace..].find('}').filter(|end| *end > 0) else {
            return fail("a brace is not closed");
        };
        let field = &string[brace + 1..brace + end];
        let value = if field.is_empty() {
            next += 1;
            arguments.positional.get(next - 1)
        } else if let Ok(index) = field.parse::<usize>() {
            arguments.positional.get(index)
        } else {
            arguments.named(field)
        };
        let Some(value) = value else { return fail(format!("the format has no value for `{field}`")) };
        builder.push(budget, &to_text(budget, value)?)?;
        at = brace + end + 1;
    }
    builder.push(budget, &this.slice(budget, at..string.len())?)?;
    Ok(Value::Text(builder.finish()))
}

/// The first character in upper case, the others in lower case.
pub(super) fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
    first + &characters.as_str().to_lowercase()
}

/// `str.title`: a letter after another letter is in lower case, others are in upper case.
fn title(text: &str) -> String {
    capitalize_words(text, |before| before.is_uppercase() || before.is_lowercase())
}

/// Lower case for characters inside of words, upper case for others. `continues` says whether the character after this one
/// is inside of a word.
pub(super) fn capitalize_words(text: &str, continues: impl Fn(char) -> bool) -> String {
    let (mut words, mut inside) = (String::with_capacity(text.len()), false);
    for character in text.chars() {
        if inside {
            words.extend(character.to_lowercase());
        } else {
            words.extend(character.to_uppercase());
        }
        inside = continues(character);
    }
    words
}
