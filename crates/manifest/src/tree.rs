//! Parses the output of `cargo tree`: packages with version, source, resolved features, and dependents.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;

use crate::error::Error;

/// One line of the tree: depth, resolved features, package. `|` separates the depth from the features, since a
/// feature may start with a digit but contains neither `|` nor spaces.
///
/// `{f}` prints the features resolved for the target. The feature nodes of `-e features`, which ignore
/// `--format`, are not needed.
pub(crate) const FORMAT: [&str; 6] = ["--edges", "normal", "--prefix", "depth", "--format", "|{f}|{p}"];

/// The Candle crates that are released together with one version.
pub(crate) const CANDLE_CRATES: [&str; 9] = [
    "candle-core",
    "candle-nn",
    "candle-transformers",
    "candle-datasets",
    "candle-onnx",
    "candle-flash-attn",
    "candle-flash-attn-v3",
    "candle-kernels",
    "candle-metal-kernels",
];

/// The source of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", content = "at", rename_all = "lowercase")]
pub(crate) enum Source {
    /// A registry by name. The default registry has the empty name.
    Registry(String),
    /// The URL of a git repository, with its commit.
    Git(String),
    /// The folder of a path dependency.
    Path(PathBuf),
}

/// One package of the resolved tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Package {
    /// The package name, not a renamed dependency key.
    pub(crate) name: String,
    /// The resolved version.
    pub(crate) version: String,
    /// The source.
    pub(crate) source: Source,
    /// The resolved features.
    pub(crate) features: BTreeSet<String>,
}

impl Package {
    pub(crate) fn is_candle(&self) -> bool {
        CANDLE_CRATES.contains(&self.name.as_str())
    }

    pub(crate) fn has(&self, feature: &str) -> bool {
        self.features.contains(feature)
    }
}

/// The dependency tree resolved for one target.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    pub(crate) packages: Vec<Package>,
    /// The root packages, at depth 0.
    pub(crate) roots: Vec<usize>,
    /// Direct dependents of each package.
    parents: Vec<BTreeSet<usize>>,
}

impl Tree {
    /// Parses the output of `cargo tree` called with [`FORMAT`]. Cargo prints a repeated package as a leaf marked
    /// `(*)`; it is identified by name, version and source, so no dependency is lost.
    pub(crate) fn parse(output: &str) -> Result<Self, Error> {
        let mut tree = Self::default();
        let mut known: BTreeMap<(String, String, Source), usize> = BTreeMap::new();
        let mut path: Vec<usize> = Vec::new();
        for line in output.lines().filter(|line| !line.trim().is_empty()) {
            let (depth, package) = parse_line(line).ok_or_else(|| Error::TreeLine(line.to_owned()))?;
            let identity = (package.name.clone(), package.version.clone(), package.source.clone());
            let index = *known.entry(identity).or_insert(tree.packages.len());
            if index == tree.packages.len() {
                tree.packages.push(package);
                tree.parents.push(BTreeSet::new());
            } else {
                tree.packages[index].features.extend(package.features);
            }
            if depth > path.len() {
                return Err(Error::TreeDepth(line.to_owned()));
            }
            path.truncate(depth);
            match path.last() {
                Some(&parent) => {
                    tree.parents[index].insert(parent);
                }
                None if !tree.roots.contains(&index) => tree.roots.push(index),
                None => {}
            }
            path.push(index);
        }
        Ok(tree)
    }

    /// The Candle packages in the order of [`CANDLE_CRATES`], older versions first.
    pub(crate) fn candle(&self) -> Vec<&Package> {
        let mut found: Vec<&Package> = self.packages.iter().filter(|package| package.is_candle()).collect();
        found.sort_by(|a, b| {
            let rank = |package: &Package| CANDLE_CRATES.iter().position(|name| *name == package.name);
            rank(a).cmp(&rank(b)).then_with(|| compare(&a.version, &b.version))
        });
        found
    }

    /// Whether `package` depends on `on` directly.
    pub(crate) fn depends(&self, package: &Package, on: &Package) -> bool {
        let (package, on) = (self.position(package), self.position(on));
        package.zip(on).is_some_and(|(package, on)| self.parents[on].contains(&package))
    }

    fn position(&self, package: &Package) -> Option<usize> {
        self.packages.iter().position(|other| other == package)
    }

    /// The nearest dependents of `package` outside of Candle.
    pub(crate) fn dependents(&self, package: &Package) -> Vec<&Package> {
        let mut pending: Vec<usize> = self.position(package).into_iter().collect();
        let mut seen = BTreeSet::new();
        let mut found = BTreeSet::new();
        while let Some(index) = pending.pop() {
            for &parent in &self.parents[index] {
                if !self.packages[parent].is_candle() {
                    found.insert(parent);
                } else if seen.insert(parent) {
                    pending.push(parent);
                }
            }
        }
        found.into_iter().map(|index| &self.packages[index]).collect()
    }
}

fn parse_line(line: &str) -> Option<(usize, Package)> {
    let mut pieces = line.splitn(3, '|');
    let depth = pieces.next()?.trim().parse().ok()?;
    let features = pieces.next()?;
    let package = pieces.next()?.trim();
    let package = package.strip_suffix("(*)").unwrap_or(package).trim_end();
    let (name, rest) = package.split_once(" v")?;
    let (version, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let rest = rest.trim().strip_prefix("(proc-macro)").unwrap_or(rest).trim();
    let origin = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(rest);
    let source = if let Some(registry) = origin.strip_prefix("registry ") {
        Source::Registry(registry.trim_matches('`').to_owned())
    } else if origin.contains("://") {
        Source::Git(origin.to_owned())
    } else if origin.is_empty() {
        Source::Registry(String::new())
    } else {
        Source::Path(PathBuf::from(origin))
    };
    let features = features.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned).collect();
    Some((depth, Package { name: name.to_owned(), version: version.to_owned(), source, features }))
}

/// Compares versions numerically. A pre-release sorts before its release; missing components are zero.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    components(a).cmp(&components(b))
}

fn components(version: &str) -> ([u64; 3], bool) {
    let version = version.split('+').next().unwrap_or_default();
    let (numbers, is_release) = match version.split_once('-') {
        Some((numbers, _)) => (numbers, false),
        None => (version, true),
    };
    let mut parts = [0; 3];
    for (part, text) in parts.iter_mut().zip(numbers.split('.')) {
        *part = text.trim().parse().unwrap_or(0);
    }
    (parts, is_release)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
0|default,fast|app v0.1.0 (/home/me/my project (old))
1|default,metal|candle-core v0.11.1
2|1d,std|half v2.7.1
1|default|candle-nn v0.11.1 (https://example.org/candle?rev=abc#abcdef12)
2|default,metal|candle-core v0.11.1 (*)
1||derive v1.0.0 (proc-macro) (/home/me/derive)

0||other v0.2.0 (/home/me/other)
1|default|candle-nn v0.9.2 (registry `mine`)
";

    #[test]
    fn versions_sources_and_features_are_read() {
        let tree = Tree::parse(OUTPUT).expect("the output is well formed");
        let seen: Vec<(&str, &str, &Source)> =
            tree.candle().iter().map(|p| (p.name.as_str(), p.version.as_str(), &p.source)).collect();
        let git = Source::Git("https://example.org/candle?rev=abc#abcdef12".to_owned());
        assert_eq!(
            seen,
            [
                ("candle-core", "0.11.1", &Source::Registry(String::new())),
                ("candle-nn", "0.9.2", &Source::Registry("mine".to_owned())),
                ("candle-nn", "0.11.1", &git),
            ]
        );
        assert!(tree.candle()[0].has("metal"));
        assert!(!tree.candle()[1].has("metal"));
    }

    #[test]
    fn packages_at_depth_0_are_roots() {
        let tree = Tree::parse(OUTPUT).expect("the output is well formed");
        let roots: Vec<&Source> = tree.roots.iter().map(|&root| &tree.packages[root].source).collect();
        let path = |text: &str| Source::Path(PathBuf::from(text));
        assert_eq!(roots, [&path("/home/me/my project (old)"), &path("/home/me/other")]);
    }

    #[test]
    fn a_repeated_package_keeps_all_its_dependents() {
        let output = "0||app v0.1.0 (/a)\n1|metal|candle-core v0.9.2\n1||lib v1.0.0\n2||candle-nn v0.9.2\n\
                      3|metal|candle-core v0.9.2 (*)\n";
        let tree = Tree::parse(output).expect("the output is well formed");
        let dependents: Vec<&str> =
            tree.dependents(tree.candle()[0]).iter().map(|package| package.name.as_str()).collect();
        assert_eq!(dependents, ["app", "lib"]);
    }

    #[test]
    fn an_unknown_line_is_rejected_with_its_text() {
        let error = Tree::parse("warning: something").expect_err("no such line");
        assert!(error.to_string().ends_with("`warning: something`"), "{error}");
    }

    #[test]
    fn versions_are_ordered_by_number() {
        assert_eq!(compare("0.9.2", "0.11.1"), Ordering::Less);
        assert_eq!(compare("0.11.1-alpha.1", "0.11.1"), Ordering::Less);
        assert_eq!(compare("0.11", "0.11.0+build"), Ordering::Equal);
    }
}
