//! What a manifest's text says about Candle, with the place of every word, so that the text can be amended.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::tree::FAMILY;

/// The table a dependency stands in. Development and build dependencies are not read: they do not decide
/// what the program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Table {
    Dependencies,
    /// `[target.'…'.dependencies]`, with what stands between the quotes.
    Target(String),
    /// `[workspace.dependencies]`
    Workspace,
}

impl Table {
    pub(super) fn header(&self) -> String {
        match self {
            Self::Dependencies => "[dependencies]".to_owned(),
            Self::Target(target) => format!("[target.'{target}'.dependencies]"),
            Self::Workspace => "[workspace.dependencies]".to_owned(),
        }
    }
}

/// How a dependency is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `name = "1.0"`
    Text,
    /// `name = { version = "1.0" }`
    Inline,
    /// `name.version = "1.0"`
    Dotted,
    /// `[dependencies.name]`
    Section,
}

/// One `key = value` of a dependency, the value as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: String,
    /// The value's place in the text.
    pub(super) place: Range<usize>,
}

/// A dependency on a crate of Candle.
#[derive(Debug, Clone)]
pub(super) struct Declaration {
    pub(super) table: Table,
    /// The name it goes by in this project.
    pub(super) key: String,
    /// The crate's own name.
    pub(super) package: String,
    /// `workspace = true`: version and source stand in the workspace's manifest.
    pub(super) inherited: bool,
    pub(super) optional: bool,
    pub(super) features: Vec<String>,
    pub(super) shape: Shape,
    /// In the order of the text.
    pub(super) entries: Vec<Entry>,
    /// The value's place: the string, the inline table, the section's header, or the key of a dotted one.
    pub(super) place: Range<usize>,
    pub(super) key_place: Range<usize>,
}

impl Declaration {
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The string under `key`, without its quotes.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.entry(key).map(|entry| entry.value.trim_matches(['"', '\'']))
    }

    /// Where the whole declaration begins and ends.
    pub(super) fn extent(&self) -> Range<usize> {
        let start = self.place.start.min(self.key_place.start);
        let end = self.entries.iter().map(|entry| entry.place.end).fold(self.place.end, usize::max);
        start..end
    }
}

/// One line of `[features]`.
#[derive(Debug, Clone)]
pub(super) struct FeatureList {
    pub(super) name: String,
    pub(super) items: Vec<String>,
    pub(super) place: Range<usize>,
}

/// One Cargo.toml.
#[derive(Debug, Clone)]
pub(super) struct Manifest {
    pub(super) file: PathBuf,
    /// Ends with a line break.
    pub(super) text: String,
    pub(super) declarations: Vec<Declaration>,
    pub(super) lists: Vec<FeatureList>,
    /// The headers of the dependency tables, with their place.
    pub(super) headers: Vec<(Table, Range<usize>)>,
    /// The features that are on in the tree read.
    pub(super) active: BTreeSet<String>,
}

impl Manifest {
    /// Reads a manifest; `workspace` is the root's, from which dependencies are inherited.
    pub(super) fn parse(file: &Path, text: &str, workspace: Option<&Self>) -> anyhow::Result<Self> {
        let mut text = text.to_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let document = DeTable::parse(&text)
            .with_context(|| format!("could not read the manifest: `{}`", file.display()))?;
        let document = document.get_ref();
        let mut tables: Vec<(Table, &Spanned<DeValue>)> = Vec::new();
        tables.extend(document.get("dependencies").map(|table| (Table::Dependencies, table)));
        for (target, tables_of_target) in children(document.get("target")) {
            let table = tables_of_target.get_ref().get("dependencies");
            tables.extend(table.map(|table| (Table::Target(target.get_ref().to_string()), table)));
        }
        let shared = document.get("workspace").and_then(|table| table.get_ref().get("dependencies"));
        tables.extend(shared.map(|table| (Table::Workspace, table)));

        let mut declarations = Vec::new();
        let mut headers = Vec::new();
        for (table, content) in tables {
            if text[content.span()].starts_with('[') {
                headers.push((table.clone(), content.span()));
            }
            for (key, value) in children(Some(content)) {
                declarations.extend(declaration(&text, &table, key, value, workspace));
            }
        }
        declarations.sort_by_key(|declaration| declaration.extent().start);
        let lists = children(document.get("features"))
            .map(|(name, value)| FeatureList {
                name: name.get_ref().to_string(),
                items: strings(value.get_ref()),
                place: value.span(),
            })
            .collect();
        Ok(Self { file: file.to_owned(), declarations, lists, headers, active: BTreeSet::new(), text })
    }

    /// The lists of `[features]` that are on.
    pub(super) fn active_lists(&self) -> impl Iterator<Item = &FeatureList> {
        self.lists.iter().filter(|list| self.active.contains(&list.name))
    }

    pub(super) fn declares(&self, package: &str) -> impl Iterator<Item = &Declaration> {
        self.declarations.iter().filter(move |declaration| declaration.package == package)
    }
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

fn children<'a, 'text>(
    table: Option<&'a Spanned<DeValue<'text>>>,
) -> impl Iterator<Item = (&'a Key<'text>, &'a Spanned<DeValue<'text>>)> {
    table.and_then(|table| table.get_ref().as_table()).into_iter().flat_map(|table| table.iter())
}

fn strings(value: &DeValue) -> Vec<String> {
    let items = value.as_array().into_iter().flat_map(|items| items.iter());
    items.filter_map(|item| item.get_ref().as_str()).map(str::to_owned).collect()
}

fn declaration(
    text: &str,
    table: &Table,
    key: &Key,
    value: &Spanned<DeValue>,
    workspace: Option<&Manifest>,
) -> Option<Declaration> {
    let name = key.get_ref().to_string();
    let flag = |key: &str| value.get_ref().get(key).and_then(|value| value.get_ref().as_bool()) == Some(true);
    let inherited = flag("workspace");
    let shared = workspace.filter(|_| inherited).and_then(|root| {
        root.declarations.iter().find(|shared| shared.table == Table::Workspace && shared.key == name)
    });
    let own_package = value.get_ref().get("package").and_then(|value| value.get_ref().as_str());
    let package = own_package.or(shared.map(|shared| shared.package.as_str())).unwrap_or(&name).to_owned();
    if !FAMILY.contains(&package.as_str()) {
        return None;
    }
    let written = &text[value.span()];
    let shape = if value.get_ref().as_str().is_some() {
        Shape::Text
    } else if written.starts_with('{') {
        Shape::Inline
    } else if written.starts_with('[') {
        Shape::Section
    } else {
        Shape::Dotted
    };
    let entry = |key: &str, place: Range<usize>| Entry {
        key: key.to_owned(),
        value: text[place.clone()].to_owned(),
        place,
    };
    let mut entries: Vec<Entry> = match shape {
        Shape::Text => vec![entry("version", value.span())],
        Shape::Inline | Shape::Section | Shape::Dotted => {
            children(Some(value)).map(|(key, value)| entry(key.get_ref(), value.span())).collect()
        }
    };
    entries.sort_by_key(|entry| entry.place.start);
    let features = value.get_ref().get("features").map(|value| strings(value.get_ref())).unwrap_or_default();
    Some(Declaration {
        table: table.clone(),
        key: name,
        package,
        inherited,
        optional: flag("optional"),
        features,
        shape,
        entries,
        place: value.span(),
        key_place: key.span(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[dependencies]
serde = "1"
candle = { package = "candle-core", version = "0.11.1", features = ["metal"], optional = true }
candle-nn = "0.11.1"
candle-transformers.version = "0.11.1"
[dependencies.candle-onnx]
version = "0.11.1"
features = []
[target.'cfg(unix)'.dependencies]
candle-datasets.workspace = true
[dev-dependencies]
candle-flash-attn = "0.11.1"
[features]
gpu = ["candle/metal", "dep:candle"]
"#;

    #[test]
    fn every_way_of_writing_a_dependency_is_read() {
        let manifest = Manifest::parse(Path::new("Cargo.toml"), TEXT, None).expect("it is a manifest");
        let seen: Vec<(&str, &str, Shape, &Table, bool)> = manifest
            .declarations
            .iter()
            .map(|it| (it.key.as_str(), it.package.as_str(), it.shape, &it.table, it.inherited))
            .collect();
        let own = &Table::Dependencies;
        let unix = &Table::Target("cfg(unix)".to_owned());
        assert_eq!(
            seen,
            [
                ("candle", "candle-core", Shape::Inline, own, false),
                ("candle-nn", "candle-nn", Shape::Text, own, false),
                ("candle-transformers", "candle-transformers", Shape::Dotted, own, false),
                ("candle-onnx", "candle-onnx", Shape::Section, own, false),
                ("candle-datasets", "candle-datasets", Shape::Dotted, unix, true),
            ]
        );
        assert!(manifest.declarations[0].optional);
        assert_eq!(manifest.declarations[0].features, ["metal"]);
        assert_eq!(manifest.declarations[0].text("version"), Some("0.11.1"));
        assert_eq!(manifest.lists[0].items, ["candle/metal", "dep:candle"]);
    }

    #[test]
    fn a_rename_is_inherited_from_the_workspace() {
        let root = "[workspace.dependencies]\ncandle = { package = \"candle-core\", version = \"0.11.1\" }";
        let root = Manifest::parse(Path::new("Cargo.toml"), root, None).expect("it is a manifest");
        let member = "[dependencies]\ncandle = { workspace = true }";
        let member =
            Manifest::parse(Path::new("a/Cargo.toml"), member, Some(&root)).expect("it is a manifest");
        assert_eq!(member.declarations[0].package, "candle-core");
    }
}
