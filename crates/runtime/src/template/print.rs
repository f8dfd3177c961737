//! Values as text: `str` and `repr` of Python, and `json.dumps`.

use std::fmt::Write as _;

use super::budget::Budget;
use super::error::{TemplateError, fail};
use super::text::{Text, TextBuilder};
use super::value::{List, ListKind, Map, Value};

/// Options of `json.dumps`.
#[derive(Default)]
pub(super) struct JsonOptions {
    pub(super) indent: Option<String>,
    /// Between items, and between a key and its value.
    pub(super) separators: Option<(String, String)>,
    pub(super) ascii: bool,
    pub(super) sorted: bool,
}

/// `str(value)`. Text stays itself; anything else that contains text of the caller is the caller's as a whole.
pub(super) fn to_text(budget: &Budget, value: &Value) -> Result<Text, TemplateError> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Undefined => Ok(Text::of_template("")),
        _ => {
            let mut writer = Writer { budget, text: String::new(), of_caller: false };
            writer.repr(value)?;
            writer.finish()
        }
    }
}

/// `json.dumps(value)`. A value that contains text of the caller is the caller's as a whole.
pub(super) fn to_json(budget: &Budget, value: &Value, options: &JsonOptions) -> Result<Text, TemplateError> {
    let mut writer = Writer { budget, text: String::new(), of_caller: false };
    writer.json(value, options, 0)?;
    writer.finish()
}

struct Writer<'a> {
    budget: &'a Budget,
    text: String,
    of_caller: bool,
}

impl Writer<'_> {
    fn finish(self) -> Result<Text, TemplateError> {
        let mut builder = TextBuilder::default();
        builder.push_str(self.budget, &self.text, self.of_caller)?;
        Ok(builder.finish())
    }

    fn push(&mut self, text: &str) -> Result<(), TemplateError> {
        self.budget.step(1)?;
        self.budget.allocate(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn repr(&mut self, value: &Value) -> Result<(), TemplateError> {
        match value {
            Value::Undefined => self.push("Undefined"),
            Value::None => self.push("None"),
            Value::Bool(true) => self.push("True"),
            Value::Bool(false) => self.push("False"),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) => self.push(&float(*value)),
            Value::Text(text) => {
                self.of_caller |= text.has_caller();
                self.budget.examine(text.as_str().len())?;
                self.budget.allocate(text.as_str().len())?;
                let quoted = quote(text.as_str());
                self.push(&quoted)
            }
            Value::List(list) => self.repr_list(list),
            Value::Map(map) => self.repr_map(map),
            Value::Namespace(_)
            | Value::Loop(_)
            | Value::Function(_)
            | Value::Method(_)
            | Value::Macro(_) => fail(format!("a {} can't be printed", value.type_name())),
        }
    }

    fn repr_list(&mut self, list: &List) -> Result<(), TemplateError> {
        let (open, close) = match list.kind {
            ListKind::List => ("[", "]"),
            ListKind::Tuple if list.items.len() == 1 => ("(", ",)"),
            ListKind::Tuple => ("(", ")"),
            ListKind::View | ListKind::Iterator => return fail("an iterator can't be printed"),
        };
        self.push(open)?;
        for (at, item) in list.items.iter().enumerate() {
            self.push(if at > 0 { ", " } else { "" })?;
            self.repr(item)?;
        }
        self.push(close)
    }

    fn repr_map(&mut self, map: &Map) -> Result<(), TemplateError> {
        self.push("{")?;
        for (at, (key, value)) in map.entries.iter().enumerate() {
            self.push(if at > 0 { ", " } else { "" })?;
            self.repr(key)?;
            self.push(": ")?;
            self.repr(value)?;
        }
        self.push("}")
    }

    fn json(&mut self, value: &Value, options: &JsonOptions, depth: usize) -> Result<(), TemplateError> {
        match value {
            Value::None => self.push("null"),
            Value::Bool(value) => self.push(if *value { "true" } else { "false" }),
            Value::Int(value) => self.push(&value.to_string()),
            Value::Float(value) if value.is_nan() => self.push("NaN"),
            Value::Float(value) if value.is_infinite() => {
                self.push(if *value > 0.0 { "Infinity" } else { "-Infinity" })
            }
            Value::Float(value) => self.push(&float(*value)),
            Value::Text(text) => self.json_text(text, options),
            Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => {
                if list.items.is_empty() {
                    return self.push("[]");
                }
                self.push("[")?;
                for (at, item) in list.items.iter().enumerate() {
                    self.separate(at, options, depth + 1)?;
                    self.json(item, options, depth + 1)?;
                }
                self.break_line(options, depth)?;
                self.push("]")
            }
            Value::Map(map) => {
                if map.entries.is_empty() {
                    return self.push("{}");
                }
                let mut entries: Vec<&(Value, Value)> = map.entries.iter().collect();
                if options.sorted {
                    self.budget.step(entries.len() * 8)?;
                    entries.sort_by_key(|(key, _)| key.as_text().map(Text::as_str));
                }
                self.push("{")?;
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    self.separate(at, options, depth + 1)?;
                    self.json_key(key, options)?;
                    self.push(options.separators.as_ref().map_or(": ", |(_, colon)| colon))?;
                    self.json(value, options, depth + 1)?;
                }
                self.break_line(options, depth)?;
                self.push("}")
            }
            Value::Undefined
            | Value::List(_)
            | Value::Namespace(_)
            | Value::Loop(_)
            | Value::Function(_)
            | Value::Method(_)
            | Value::Macro(_) => {
                fail(format!("a value of type {} can't be written as JSON", value.type_name()))
            }
        }
    }

    /// A key: other values than texts are written as text.
    fn json_key(&mut self, key: &Value, options: &JsonOptions) -> Result<(), TemplateError> {
        if let Value::Text(key) = key {
            return self.json_text(key, options);
        }
        self.push("\"")?;
        self.json(key, options, 0)?;
        self.push("\"")
    }

    /// The separator before item `at`.
    fn separate(&mut self, at: usize, options: &JsonOptions, depth: usize) -> Result<(), TemplateError> {
        if at > 0 {
            let usual = if options.indent.is_some() { "," } else { ", " };
            self.push(options.separators.as_ref().map_or(usual, |(comma, _)| comma))?;
        }
        self.break_line(options, depth)
    }

    fn break_line(&mut self, options: &JsonOptions, depth: usize) -> Result<(), TemplateError> {
        if let Some(indent) = &options.indent {
            self.push("\n")?;
            for _ in 0..depth {
                self.push(indent)?;
            }
        }
        Ok(())
    }

    fn json_text(&mut self, text: &Text, options: &JsonOptions) -> Result<(), TemplateError> {
        self.of_caller |= text.has_caller();
        self.budget.examine(text.as_str().len())?;
        self.budget.allocate(text.as_str().len())?;
        let mut quoted = String::with_capacity(text.as_str().len() + 2);
        quoted.push('"');
        for character in text.as_str().chars() {
            match character {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                _ if character < ' ' || (options.ascii && character > '~') => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(quoted, "\\u{unit:04x}");
                    }
                }
                _ => quoted.push(character),
            }
        }
        quoted.push('"');
        self.push(&quoted)
    }
}

/// `repr` of a text.
fn quote(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if character == quote => {
                quoted.push('\\');
                quoted.push(character);
            }
            _ if is_printable(character) => quoted.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xff => write!(quoted, "\\x{code:02x}"),
                    0x100..=0xffff => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
            }
        }
    }
    quoted.push(quote);
    quoted
}

/// Whether `repr` shows the character itself: not control, separator, format, surrogate or private-use characters.
/// Unassigned characters count as printable.
fn is_printable(character: char) -> bool {
    let hidden = character.is_control()
        || (character.is_whitespace() && character != ' ')
        || matches!(character,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
            | '\u{f0000}'..);
    !hidden
}

/// `repr` of a float: the shortest digits that read back as the same value.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let shortest = format!("{value:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_and_texts_are_printed_as_in_python() {
        let printed = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e100, "1e+100"),
            (-2.5, "-2.5"),
            (123_456.789, "123456.789"),
        ];
        for (value, text) in printed {
            assert_eq!(float(value), text);
        }
        let quoted = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\nb\\", "'a\\nb\\\\'"),
            ("é中🙂", "'é中🙂'"),
            ("\u{1}\u{a0}\u{200b}", "'\\x01\\xa0\\u200b'"),
        ];
        for (text, expected) in quoted {
            assert_eq!(quote(text), expected);
        }
    }
}
