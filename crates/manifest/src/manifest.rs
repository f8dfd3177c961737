//! Parses the Candle dependencies and features of a `Cargo.toml`, with the span of every value in its text.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Error;
use crate::tree::CANDLE_CRATES;

/// The table of a dependency. Development and build dependencies are ignored: the program does not link them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Table {
    Dependencies,
    /// `[target.'…'.dependencies]`, with the quoted target or `cfg`.
    Target(String),
    /// `[workspace.dependencies]`
    Workspace,
}

impl Table {
    pub(crate) fn header(&self) -> String {
        match self {
            Self::Dependencies => "[dependencies]".to_owned(),
            Self::Target(target) => format!("[target.'{target}'.dependencies]"),
            Self::Workspace => "[workspace.dependencies]".to_owned(),
        }
    }
}

/// The TOML syntax of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syntax {
    /// `name = "1.0"`
    String,
    /// `name = { version = "1.0" }`
    InlineTable,
    /// `name.version = "1.0"`
    DottedKey,
    /// `[dependencies.name]`
    Table,
}

/// One `key = value` of a dependency, the value in TOML syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) value: String,
    /// The span of the value.
    pub(crate) span: Range<usize>,
}

/// A dependency on a crate of Candle.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    pub(crate) table: Table,
    /// The name in this project, which `package = "…"` may rename.
    pub(crate) key: String,
    /// The package name.
    pub(crate) package: String,
    /// `workspace = true`: version and source come from `[workspace.dependencies]`.
    pub(crate) inherited: bool,
    pub(crate) optional: bool,
    pub(crate) features: Vec<String>,
    pub(crate) syntax: Syntax,
    /// In the order of the text.
    pub(crate) entries: Vec<Entry>,
    /// The span of the string, the inline table, the table header, or the dotted key.
    pub(crate) span: Range<usize>,
    pub(crate) key_span: Range<usize>,
}

impl Dependency {
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The string under `key`, without its quotes.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.entry(key).map(|entry| entry.value.trim_matches(['"', '\'']))
    }

    /// The span of key and value.
    pub(crate) fn extent(&self) -> Range<usize> {
        let start = self.span.start.min(self.key_span.start);
        let end = self.entries.iter().map(|entry| entry.span.end).fold(self.span.end, usize::max);
        start..end
    }
}

/// One entry of `[features]`.
#[derive(Debug, Clone)]
pub(crate) struct Feature {
    pub(crate) name: String,
    pub(crate) items: Vec<String>,
    pub(crate) span: Range<usize>,
}

/// One Cargo.toml.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub(crate) file: PathBuf,
    /// Ends with a line break.
    pub(crate) text: String,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) features: Vec<Feature>,
    /// The headers of the dependency tables, with their spans.
    pub(crate) headers: Vec<(Table, Range<usize>)>,
    /// The package's features that the resolved tree enables.
    pub(crate) active: BTreeSet<String>,
}

impl Manifest {
    /// Parses a manifest. `workspace` is the root manifest, from which dependencies are inherited.
    pub(crate) fn parse(file: &Path, text: &str, workspace: Option<&Self>) -> Result<Self, Error> {
        let mut text = text.to_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let document = DeTable::parse(&text).map_err(|error| Error::Parse(file.to_owned(), error))?;
        let document = document.get_ref();
        let mut tables: Vec<(Table, &Spanned<DeValue>)> = Vec::new();
        tables.extend(document.get("dependencies").map(|table| (Table::Dependencies, table)));
        for (target, tables_of_target) in children(document.get("target")) {
            let table = tables_of_target.get_ref().get("dependencies");
            tables.extend(table.map(|table| (Table::Target(target.get_ref().to_string()), table)));
        }
        let shared = document.get("workspace").and_then(|table| table.get_ref().get("dependencies"));
        tables.extend(shared.map(|table| (Table::Workspace, table)));

        let mut dependencies = Vec::new();
        let mut headers = Vec::new();
        for (table, content) in tables {
            if text[content.span()].starts_with('[') {
                headers.push((table.clone(), content.span()));
            }
            for (key, value) in children(Some(content)) {
                dependencies.extend(dependency(&text, &table, key, value, workspace));
            }
        }
        dependencies.sort_by_key(|dependency| dependency.extent().start);
        let features = children(document.get("features"))
            .map(|(name, value)| Feature {
                name: name.get_ref().to_string(),
                items: strings(value.get_ref()),
                span: value.span(),
            })
            .collect();
        Ok(Self { file: file.to_owned(), dependencies, features, headers, active: BTreeSet::new(), text })
    }

    /// The entries of `[features]` that are enabled.
    pub(crate) fn active_features(&self) -> impl Iterator<Item = &Feature> {
        self.features.iter().filter(|list| self.active.contains(&list.name))
    }

    pub(crate) fn dependencies_on(&self, package: &str) -> impl Iterator<Item = &Dependency> {
        self.dependencies.iter().filter(move |dependency| dependency.package == package)
    }
}

/// Whether an item of a `[features]` entry references a dependency.
pub(crate) fn references(item: &str, key: &str) -> bool {
    let item = item.strip_prefix("dep:").unwrap_or(item);
    item.split('/').next().map(|name| name.trim_end_matches('?')) == Some(key)
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

fn dependency(
    text: &str,
    table: &Table,
    key: &Key,
    value: &Spanned<DeValue>,
    workspace: Option<&Manifest>,
) -> Option<Dependency> {
    let name = key.get_ref().to_string();
    let flag = |key: &str| value.get_ref().get(key).and_then(|value| value.get_ref().as_bool()) == Some(true);
    let inherited = flag("workspace");
    let shared = workspace.filter(|_| inherited).and_then(|root| {
        root.dependencies.iter().find(|shared| shared.table == Table::Workspace && shared.key == name)
    });
    let own_package = value.get_ref().get("package").and_then(|value| value.get_ref().as_str());
    let package = own_package.or(shared.map(|shared| shared.package.as_str())).unwrap_or(&name).to_owned();
    if !CANDLE_CRATES.contains(&package.as_str()) {
        return None;
    }
    let written = &text[value.span()];
    let syntax = if value.get_ref().as_str().is_some() {
        Syntax::String
    } else if written.starts_with('{') {
        Syntax::InlineTable
    } else if written.starts_with('[') {
        Syntax::Table
    } else {
        Syntax::DottedKey
    };
    let entry = |key: &str, span: Range<usize>| Entry {
        key: key.to_owned(),
        value: text[span.clone()].to_owned(),
        span,
    };
    let mut entries: Vec<Entry> = match syntax {
        Syntax::String => vec![entry("version", value.span())],
        Syntax::InlineTable | Syntax::Table | Syntax::DottedKey => {
            children(Some(value)).map(|(key, value)| entry(key.get_ref(), value.span())).collect()
        }
    };
    entries.sort_by_key(|entry| entry.span.start);
    let features = value.get_ref().get("features").map(|value| strings(value.get_ref())).unwrap_or_default();
    Some(Dependency {
        table: table.clone(),
        key: name,
        package,
        inherited,
        optional: flag("optional"),
        features,
        syntax,
        entries,
        span: value.span(),
        key_span: key.span(),
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
    fn every_syntax_of_a_dependency_is_parsed() {
        let manifest = Manifest::parse(Path::new("Cargo.toml"), TEXT, None).expect("it is a manifest");
        let seen: Vec<(&str, &str, Syntax, &Table, bool)> = manifest
            .dependencies
            .iter()
            .map(|it| (it.key.as_str(), it.package.as_str(), it.syntax, &it.table, it.inherited))
            .collect();
        let own = &Table::Dependencies;
        let unix = &Table::Target("cfg(unix)".to_owned());
        assert_eq!(
            seen,
            [
                ("candle", "candle-core", Syntax::InlineTable, own, false),
                ("candle-nn", "candle-nn", Syntax::String, own, false),
                ("candle-transformers", "candle-transformers", Syntax::DottedKey, own, false),
                ("candle-onnx", "candle-onnx", Syntax::Table, own, false),
                ("candle-datasets", "candle-datasets", Syntax::DottedKey, unix, true),
            ]
        );
        assert!(manifest.dependencies[0].optional);
        assert_eq!(manifest.dependencies[0].features, ["metal"]);
        assert_eq!(manifest.dependencies[0].text("version"), Some("0.11.1"));
        assert_eq!(manifest.features[0].items, ["candle/metal", "dep:candle"]);
    }

    #[test]
    fn a_rename_is_inherited_from_the_workspace() {
        let root = "[workspace.dependencies]\ncandle = { package = \"candle-core\", version = \"0.11.1\" }";
        let root = Manifest::parse(Path::new("Cargo.toml"), root, None).expect("it is a manifest");
        let member = "[dependencies]\ncandle = { workspace = true }";
        let member =
            Manifest::parse(Path::new("a/Cargo.toml"), member, Some(&root)).expect("it is a manifest");
        assert_eq!(member.dependencies[0].package, "candle-core");
    }
}
