//! How a manifest's text looks once a dependency or a feature list has changed: every other key is kept.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::change::{Change, Lines, Splice, changes};
use super::declared::{Declaration, FeatureList, Manifest, Shape, Table};

/// The keys that say where a dependency comes from.
pub(super) const SOURCE_KEYS: [&str; 7] = ["version", "registry", "git", "branch", "tag", "rev", "path"];

/// A key and its value as it is written.
pub(super) type Pair = (String, String);

/// What becomes of one dependency.
#[derive(Debug, Clone, Default)]
pub(super) struct Amendment {
    /// Features to add.
    pub(super) features: Vec<String>,
    /// The new requirement.
    pub(super) version: Option<String>,
    /// The new source, in the place of version and source.
    pub(super) source: Option<Vec<Pair>>,
    /// The dependency goes.
    pub(super) removed: bool,
}

/// A manifest and what is to change in it.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) manifest: &'a Manifest,
    amendments: BTreeMap<usize, Amendment>,
    extensions: BTreeMap<usize, Vec<String>>,
    /// Lines to put in, by offset.
    additions: Vec<(usize, String)>,
}

impl<'a> Draft<'a> {
    pub(super) fn of(manifest: &'a Manifest) -> Self {
        Self { manifest, amendments: BTreeMap::new(), extensions: BTreeMap::new(), additions: Vec::new() }
    }

    pub(super) fn amend(&mut self, declaration: &Declaration) -> &mut Amendment {
        self.amendments.entry(declaration.place.start).or_default()
    }

    pub(super) fn add_feature(&mut self, declaration: &Declaration, feature: &str) {
        let features = &mut self.amend(declaration).features;
        if !declaration.features.iter().chain(features.iter()).any(|known| known == feature) {
            features.push(feature.to_owned());
        }
    }

    pub(super) fn extend(&mut self, list: &FeatureList, item: &str) {
        let items = self.extensions.entry(list.place.start).or_default();
        if !list.items.iter().chain(items.iter()).any(|known| known == item) {
            items.push(item.to_owned());
        }
    }

    /// Adds a dependency right after another, in the same table and the same way of writing.
    pub(super) fn add_beside(&mut self, neighbour: &Declaration, key: &str, entries: &[Pair]) {
        let text = &self.manifest.text;
        let at = Lines::of(text).around(&neighbour.extent()).end;
        let addition = match neighbour.shape {
            Shape::Text | Shape::Inline | Shape::Dotted => format!("{key} = {}\n", written(entries)),
            Shape::Section => {
                let header = &text[neighbour.place.clone()];
                let header = header.replacen(&text[neighbour.key_place.clone()], key, 1);
                let lines: Vec<String> =
                    entries.iter().map(|(key, value)| format!("{key} = {value}")).collect();
                format!("\n{header}\n{}\n", lines.join("\n"))
            }
        };
        self.add(at, addition);
    }

    /// Adds a dependency at the head of a table, which is made where there is none.
    pub(super) fn add_to(&mut self, table: &Table, key: &str, entries: &[Pair]) {
        let line = format!("{key} = {}\n", written(entries));
        let text = &self.manifest.text;
        match self.manifest.headers.iter().find(|(known, _)| known == table) {
            Some((_, place)) => self.add(Lines::of(text).around(place).end, line),
            None => self.add(text.len(), format!("\n{}\n{line}", table.header())),
        }
    }

    fn add(&mut self, at: usize, text: String) {
        if !self.additions.contains(&(at, text.clone())) {
            self.additions.push((at, text));
        }
    }

    /// The lines to change.
    pub(super) fn changes(&self) -> Vec<Change> {
        let text = &self.manifest.text;
        let mut splices: Vec<Splice> =
            self.additions.iter().map(|(at, text)| Splice { place: *at..*at, text: text.clone() }).collect();
        for list in &self.manifest.lists {
            let written = &text[list.place.clone()];
            let items = self.extensions.get(&list.place.start).into_iter().flatten();
            let extended = items.fold(written.to_owned(), |array, item| append(&array, item));
            if extended != written {
                splices.push(Splice { place: list.place.clone(), text: extended });
            }
        }
        for declaration in &self.manifest.declarations {
            if let Some(amendment) = self.amendments.get(&declaration.place.start) {
                splices.extend(amended(text, declaration, amendment));
            }
        }
        changes(&self.manifest.file, text, splices)
    }
}

fn amended(text: &str, declaration: &Declaration, amendment: &Amendment) -> Vec<Splice> {
    let lines = Lines::of(text);
    if amendment.removed {
        let places = match declaration.shape {
            Shape::Dotted => declaration.entries.iter().map(|entry| lines.around(&entry.place)).collect(),
            Shape::Text | Shape::Inline | Shape::Section => vec![lines.around(&declaration.extent())],
        };
        return places.into_iter().map(|place| Splice { place, text: String::new() }).collect();
    }
    let old: Vec<Pair> =
        declaration.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone())).collect();
    let new = entries_after(&old, amendment);
    if new == old {
        return Vec::new();
    }
    if matches!(declaration.shape, Shape::Text | Shape::Inline) {
        return vec![Splice { place: declaration.place.clone(), text: written(&new) }];
    }
    let mut splices = Vec::new();
    for entry in &declaration.entries {
        match new.iter().find(|(key, _)| *key == entry.key) {
            None => splices.push(Splice { place: lines.around(&entry.place), text: String::new() }),
            Some((_, value)) if *value == entry.value => {}
            Some((_, value)) => splices.push(Splice { place: entry.place.clone(), text: value.clone() }),
        }
    }
    let prefix = match declaration.shape {
        Shape::Dotted => format!("{}.", &text[declaration.key_place.clone()]),
        Shape::Text | Shape::Inline | Shape::Section => String::new(),
    };
    let end = lines.around(&declaration.extent()).end;
    for (key, value) in new.iter().filter(|(key, _)| declaration.entry(key).is_none()) {
        splices.push(Splice { place: end..end, text: format!("{prefix}{key} = {value}\n") });
    }
    splices
}

fn entries_after(old: &[Pair], amendment: &Amendment) -> Vec<Pair> {
    let mut new = old.to_vec();
    if let Some(source) = &amendment.source {
        let is_source = |(key, _): &Pair| SOURCE_KEYS.contains(&key.as_str());
        let at = new.iter().position(is_source).unwrap_or(0);
        new.retain(|pair| !is_source(pair));
        new.splice(at..at, source.iter().cloned());
    } else if let Some(version) = &amendment.version
        && let Some((_, value)) = new.iter_mut().find(|(key, _)| key == "version")
    {
        *value = quoted(version);
    }
    for feature in &amendment.features {
        match new.iter_mut().find(|(key, _)| key == "features") {
            Some((_, array)) => *array = append(array, feature),
            None => new.push(("features".to_owned(), format!("[{}]", quoted(feature)))),
        }
    }
    new
}

/// A dependency's value: a string where the version is all there is, else an inline table.
fn written(entries: &[Pair]) -> String {
    if let [(key, value)] = entries
        && key == "version"
    {
        return value.clone();
    }
    let pairs: Vec<String> = entries.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", pairs.join(", "))
}

pub(super) fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// An array as it is written, with one more string at its end, on a line of its own where the others are.
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
    use super::super::change::apply;
    use super::*;
    use std::path::Path;

    fn amended(text: &str, amendment: &Amendment) -> String {
        let text = format!("[dependencies]\n{text}\n");
        let manifest = Manifest::parse(Path::new("Cargo.toml"), &text, None).expect("it is a manifest");
        let mut draft = Draft::of(&manifest);
        *draft.amend(&manifest.declarations[0]) = amendment.clone();
        let new = apply(&text, &draft.changes());
        new.strip_prefix("[dependencies]\n").unwrap_or(&new).trim_end().to_owned()
    }

    #[test]
    fn a_feature_is_added_in_every_way_of_writing() {
        let metal = Amendment { features: vec!["metal".to_owned()], ..Amendment::default() };
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
            assert_eq!(amended(before, &metal), after);
        }
    }

    #[test]
    fn a_source_takes_the_place_of_the_version() {
        let source = vec![("git".to_owned(), quoted("u")), ("rev".to_owned(), quoted("r"))];
        let git = Amendment { source: Some(source), ..Amendment::default() };
        let cases = [
            (r#"candle-nn = "1""#, r#"candle-nn = { git = "u", rev = "r" }"#),
            (
                r#"candle-nn = { features = ["a"], version = "1" }"#,
                r#"candle-nn = { features = ["a"], git = "u", rev = "r" }"#,
            ),
            ("candle-nn.version = \"1\"", "candle-nn.git = \"u\"\ncandle-nn.rev = \"r\""),
        ];
        for (before, after) in cases {
            assert_eq!(amended(before, &git), after);
        }
    }

    #[test]
    fn an_array_grows_the_way_it_is_written() {
        assert_eq!(append("[]", "x"), r#"["x"]"#);
        assert_eq!(append(r#"["a"]"#, "x"), r#"["a", "x"]"#);
        assert_eq!(append("[\n  \"a\",\n]", "x"), "[\n  \"a\",\n  \"x\",\n]");
        assert_eq!(append("[\n  \"a\",\n  \"b\"]", "x"), "[\n  \"a\",\n  \"b\", \"x\"]");
    }
}
