//! Edits dependencies and features in a manifest's text and leaves everything else as it is.

use std::collections::BTreeMap;

use toml::de::DeTable;

use crate::change::{Change, Lines, TextEdit, changes};
use crate::manifest::{Dependency, Feature, Manifest, Syntax, Table};

/// The keys of a dependency's version and source.
pub(crate) const SOURCE_KEYS: [&str; 7] = ["version", "registry", "git", "branch", "tag", "rev", "path"];

/// A key and its value in TOML syntax.
pub(crate) type KeyValue = (String, String);

/// The edit of one dependency.
#[derive(Debug, Clone, Default)]
pub(crate) struct DependencyEdit {
    /// Features to add.
    pub(crate) features: Vec<String>,
    /// New version requirement.
    pub(crate) version: Option<String>,
    /// New source. Replaces all of [`SOURCE_KEYS`].
    pub(crate) source: Option<Vec<KeyValue>>,
    /// Whether to remove the dependency.
    pub(crate) removed: bool,
}

/// A manifest and its pending edits.
#[derive(Debug)]
pub(crate) struct ManifestEditor<'a> {
    pub(crate) manifest: &'a Manifest,
    /// By the start of the dependency's span.
    edits: BTreeMap<usize, DependencyEdit>,
    /// Items to append to `[features]` entries, by the start of the entry's span.
    extensions: BTreeMap<usize, Vec<String>>,
    /// Lines to insert, by offset.
    insertions: Vec<(usize, String)>,
}

impl<'a> ManifestEditor<'a> {
    pub(crate) fn of(manifest: &'a Manifest) -> Self {
        Self { manifest, edits: BTreeMap::new(), extensions: BTreeMap::new(), insertions: Vec::new() }
    }

    pub(crate) fn edit(&mut self, dependency: &Dependency) -> &mut DependencyEdit {
        self.edits.entry(dependency.span.start).or_default()
    }

    pub(crate) fn add_feature(&mut self, dependency: &Dependency, feature: &str) {
        let features = &mut self.edit(dependency).features;
        if !dependency.features.iter().chain(features.iter()).any(|known| known == feature) {
            features.push(feature.to_owned());
        }
    }

    /// Appends an item to an entry of `[features]`.
    pub(crate) fn extend(&mut self, list: &Feature, item: &str) {
        let items = self.extensions.entry(list.span.start).or_default();
        if !list.items.iter().chain(items.iter()).any(|known| known == item) {
            items.push(item.to_owned());
        }
    }

    /// Inserts a dependency after another one, in the same table and the same syntax.
    pub(crate) fn add_beside(&mut self, neighbour: &Dependency, key: &str, entries: &[KeyValue]) {
        let text = &self.manifest.text;
        let at = Lines::of(text).around(&neighbour.extent()).end;
        let inserted = match neighbour.syntax {
            Syntax::String | Syntax::InlineTable | Syntax::DottedKey => {
                format!("{key} = {}\n", written(entries))
            }
            Syntax::Table => {
                let header = &text[neighbour.span.clone()];
                let header = header.replacen(&text[neighbour.key_span.clone()], key, 1);
                let lines: Vec<String> =
                    entries.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                format!("\n{header}\n{}\n", lines.join("\n"))
            }
        };
        self.insert(at, inserted);
    }

    /// Inserts a dependency at the start of a table. Creates the table if it is missing.
    pub(crate) fn add_to(&mut self, table: &Table, key: &str, entries: &[KeyValue]) {
        let line = format!("{key} = {}\n", written(entries));
        let text = &self.manifest.text;
        match self.manifest.headers.iter().find(|(known, _)| known == table) {
            Some((_, span)) => self.insert(Lines::of(text).around(span).end, line),
            None => self.insert(text.len(), format!("\n{}\n{line}", table.header())),
        }
    }

    fn insert(&mut self, at: usize, text: String) {
        if !self.insertions.contains(&(at, text.clone())) {
            self.insertions.push((at, text));
        }
    }

    /// The pending edits as changes of whole lines.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let text = &self.manifest.text;
        let mut edits: Vec<TextEdit> = self
            .insertions
            .iter()
            .map(|(at, text)| TextEdit { span: *at..*at, text: text.clone() })
            .collect();
        for list in &self.manifest.features {
            let written = &text[list.span.clone()];
            let items = self.extensions.get(&list.span.start).into_iter().flatten();
            let extended = items.fold(written.to_owned(), |array, item| append(&array, item));
            if extended != written {
                edits.push(TextEdit { span: list.span.clone(), text: extended });
            }
        }
        for dependency in &self.manifest.dependencies {
            if let Some(edit) = self.edits.get(&dependency.span.start) {
                edits.extend(text_edits(text, dependency, edit));
            }
        }
        changes(&self.manifest.file, text, edits)
    }
}

fn text_edits(text: &str, dependency: &Dependency, edit: &DependencyEdit) -> Vec<TextEdit> {
    let lines = Lines::of(text);
    if edit.removed {
        let spans = match dependency.syntax {
            Syntax::DottedKey => dependency.entries.iter().map(|entry| lines.around(&entry.span)).collect(),
            Syntax::String | Syntax::InlineTable | Syntax::Table => vec![lines.around(&dependency.extent())],
        };
        return spans.into_iter().map(|span| TextEdit { span, text: String::new() }).collect();
    }
    let old: Vec<KeyValue> =
        dependency.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
    let new = entries_after(&old, edit);
    if new == old {
        return Vec::new();
    }
    if matches!(dependency.syntax, Syntax::String | Syntax::InlineTable) {
        return vec![TextEdit { span: dependency.span.clone(), text: written(&new) }];
    }
    let mut edits = Vec::new();
    for entry in &dependency.entries {
        match new.iter().find(|(key, _)| *key == entry.key) {
            None => edits.push(TextEdit { span: lines.around(&entry.span), text: String::new() }),
            Some((_, value)) if *value == entry.value => {}
            Some((_, value)) => edits.push(TextEdit { span: entry.span.clone(), text: value.clone() }),
        }
    }
    let prefix = match dependency.syntax {
        Syntax::DottedKey => format!("{}.", &text[dependency.key_span.clone()]),
        Syntax::String | Syntax::InlineTable | Syntax::Table => String::new(),
    };
    let end = lines.around(&dependency.extent()).end;
    for (key, value) in new.iter().filter(|(key, _)| dependency.entry(key).is_none()) {
        edits.push(TextEdit { span: end..end, text: format!("{prefix}{key} = {value}\n") });
    }
    edits
}

fn entries_after(old: &[KeyValue], edit: &DependencyEdit) -> Vec<KeyValue> {
    let mut new = old.to_vec();
    if let Some(source) = &edit.source {
        let is_source = |(key, _): &KeyValue| SOURCE_KEYS.contains(&key.as_str());
        let at = new.iter().position(is_source).unwrap_or(0);
        new.retain(|pair| !is_source(pair));
        new.splice(at..at, source.iter().cloned());
    } else if let Some(version) = &edit.version
        && let Some((_, value)) = new.iter_mut().find(|(key, _)| key == "version")
    {
        *value = quoted(version);
    }
    for feature in &edit.features {
        match new.iter_mut().find(|(key, _)| key == "features") {
            Some((_, array)) => *array = append(array, feature),
            None => new.push(("features".to_owned(), format!("[{}]", quoted(feature)))),
        }
    }
    new
}

/// A dependency's value: a string if there is only a version, an inline table otherwise.
fn written(entries: &[KeyValue]) -> String {
    if let [(key, value)] = entries
        && key == "version"
    {
        return value.clone();
    }
    let pairs: Vec<String> = entries.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", pairs.join(", "))
}

pub(crate) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Appends a string to an array in TOML syntax, on a new line if the array is multi-line.
fn append(array: &str, item: &str) -> String {
    let item = quoted(item);
    let probe = format!("a={array}");
    let last = DeTable::parse(&probe).ok().and_then(|table| {
        let items = table.get_ref().get("a")?.get_ref().as_array()?;
        items.iter().last().map(|last| last.span().end - "a=".len())
    });
    let Some(end) = last else { return format!("[{item}]") };
    let (head, tail) = array.split_at(end);
    let (comma, tail) = match tail.strip_prefix(',') {
        Some(tail) => (true, tail),
        None => (false, tail),
    };
    match tail.split_once('\n') {
        Some((rest_of_line, rest)) => {
            let line = head.rsplit('\n').next().unwrap_or_default();
            let indent = &line[..line.len() - line.trim_start().len()];
            let last_comma = if comma { "," } else { "" };
            format!("{head},{rest_of_line}\n{indent}{item}{last_comma}\n{rest}")
        }
        None if comma => format!("{head}, {item},{tail}"),
        None => format!("{head}, {item}{tail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::apply;
    use std::path::Path;

    fn apply_edit(text: &str, edit: &DependencyEdit) -> String {
        let text = format!("[dependencies]\n{text}\n");
        let manifest = Manifest::parse(Path::new("Cargo.toml"), &text, None).expect("it is a manifest");
        let mut editor = ManifestEditor::of(&manifest);
        *editor.edit(&manifest.dependencies[0]) = edit.clone();
        let new = apply(&text, &editor.changes());
        new.strip_prefix("[dependencies]\n").unwrap_or(&new).trim_end().to_owned()
    }

    #[test]
    fn a_feature_is_added_in_every_syntax() {
        let metal = DependencyEdit { features: vec!["metal".to_owned()], ..DependencyEdit::default() };
        let cases = [
            (r#"candle-nn = "1""#, r#"candle-nn = { version = "1", features = ["metal"] }"#),
            (r#"candle-nn = "1" # why"#, r#"candle-nn = { version = "1", features = ["metal"] } # why"#),
            (
                r#"candle-nn = { version = "1", default-features = false, optional = true }"#,
                r#"candle-nn = { version = "1", default-features = false, optional = true, features = ["metal"] }"#,
            ),
            (
                r#"candle-nn = {version="1", features=["mkl",], optional=true}"#,
                r#"candle-nn = { version = "1", features = ["mkl", "metal",], optional = true }"#,
            ),
            (r"candle-nn.workspace = true", "candle-nn.workspace = true\ncandle-nn.features = [\"metal\"]"),
            (
                "[dependencies.candle-nn]\nversion = \"1\"\n\n[features]",
                "[dependencies.candle-nn]\nversion = \"1\"\nfeatures = [\"metal\"]\n\n[features]",
            ),
            (
                "[dependencies.candle-nn]\nfeatures = [\n  \"mkl\" # fast\n]\nversion = \"1\"",
                "[dependencies.candle-nn]\nfeatures = [\n  \"mkl\", # fast\n  \"metal\"\n]\nversion = \"1\"",
            ),
        ];
        for (before, after) in cases {
            assert_eq!(apply_edit(before, &metal), after);
        }
    }

    #[test]
    fn a_source_replaces_the_version() {
        let source = vec![("git".to_owned(), quoted("u")), ("rev".to_owned(), quoted("r"))];
        let git = DependencyEdit { source: Some(source), ..DependencyEdit::default() };
        let cases = [
            (r#"candle-nn = "1""#, r#"candle-nn = { git = "u", rev = "r" }"#),
            (
                r#"candle-nn = { features = ["a"], version = "1" }"#,
                r#"candle-nn = { features = ["a"], git = "u", rev = "r" }"#,
            ),
            ("candle-nn.version = \"1\"", "candle-nn.git = \"u\"\ncandle-nn.rev = \"r\""),
        ];
        for (before, after) in cases {
            assert_eq!(apply_edit(before, &git), after);
        }
    }

    #[test]
    fn an_array_keeps_its_layout() {
        assert_eq!(append("[]", "x"), r#"["x"]"#);
        assert_eq!(append(r#"["a"]"#, "x"), r#"["a", "x"]"#);
        assert_eq!(append("[\n  \"a\",\n]", "x"), "[\n  \"a\",\n  \"x\",\n]");
        assert_eq!(append("[\n  \"a\",\n  \"b\"]", "x"), "[\n  \"a\",\n  \"b\", \"x\"]");
    }
}
