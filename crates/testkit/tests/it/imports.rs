//! The modules that a Rust file names: a parser for `use` trees and paths, enough to draw a crate's module graph.

use std::collections::{BTreeMap, BTreeSet};

/// A path of identifiers from a crate's root, or a module's own path.
pub(crate) type Path = Vec<String>;

/// One source file as a module of its crate, test code left out.
#[derive(Debug)]
pub(crate) struct Module {
    /// The file, from the repository's root.
    pub(crate) file: String,
    /// Names that the file re-exports: the name and the path that it stands for. `*` re-exports everything.
    pub(crate) exports: Vec<(String, Path)>,
    /// Paths that its code names, from the crate's root.
    pub(crate) names: BTreeSet<Path>,
}

/// The modules of a crate by their paths.
pub(crate) type Modules = BTreeMap<Path, Module>;

/// The module that a file under `src` is: `a/b.rs` and `a/b/mod.rs` are `[a, b]`, `lib.rs` is the root.
pub(crate) fn module_path(file: &str) -> Path {
    let stem = file.trim_end_matches(".rs");
    let mut path: Path = stem.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod") || path.len() == 1 && ["lib", "main"].contains(&stem) {
        path.pop();
    }
    path
}

/// Reads a module from `code`, which has neither comments nor the contents of literals. `known` holds the path of
/// every module of the crate.
pub(crate) fn read(file: &str, path: &Path, code: &str, known: &BTreeSet<Path>) -> Module {
    let tokens = tokens(code);
    let mut reader = Reader {
        known,
        module: Module { file: file.to_owned(), exports: Vec::new(), names: BTreeSet::new() },
        scope: path.clone(),
        aliases: BTreeMap::new(),
    };
    // `use` first: a name may be used above its import.
    reader.walk(&tokens, true);
    reader.walk(&tokens, false);
    reader.module
}

struct Reader<'a> {
    known: &'a BTreeSet<Path>,
    module: Module,
    /// The module that the code at hand lies in: the file's own, or an inline module of it.
    scope: Path,
    /// Modules that were imported under a name.
    aliases: BTreeMap<String, Path>,
}

impl Reader<'_> {
    fn walk(&mut self, tokens: &[&str], uses: bool) {
        let (mut at, mut depth, mut inline) = (0, 0_usize, Vec::new());
        let file = self.scope.clone();
        while at < tokens.len() {
            let exported = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
            match tokens[at] {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if inline.last() == Some(&depth) {
                        inline.pop();
                        self.scope.pop();
                    }
                }
                "mod" if tokens.get(at + 2) == Some(&"{") => {
                    self.scope.push(tokens[at + 1].to_owned());
                    inline.push(depth);
                    depth += 1;
                    at += 2;
                }
                "mod" => at += 1,
                "use" => {
                    let end = at + tokens[at..].iter().position(|token| *token == ";").unwrap_or(0);
                    if uses {
                        let mut rest = &tokens[at + 1..end.max(at + 1)];
                        self.tree(&[], &mut rest, exported);
                    }
                    at = end.max(at);
                }
                first if is_name(first) && tokens.get(at + 1) == Some(&"::") => {
                    let mut path = vec![first.to_owned()];
                    while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|t| is_name(t))
                    {
                        path.push(tokens[at + 2].to_owned());
                        at += 2;
                    }
                    if !uses && let Some(path) = self.resolve(&path) {
                        self.module.names.insert(path);
                    }
                }
                _ => {}
            }
            at += 1;
        }
        self.scope = file;
    }

    /// One branch of a `use` tree.
    fn tree(&mut self, prefix: &[String], tokens: &mut &[&str], exported: bool) {
        let mut path = prefix.to_vec();
        while let Some((&token, rest)) = tokens.split_first() {
            match token {
                "{" => {
                    *tokens = rest;
                    while tokens.first().is_some_and(|token| *token != "}") {
                        self.tree(&path, tokens, exported);
                        if tokens.first() == Some(&",") {
                            *tokens = &tokens[1..];
                        }
                    }
                    *tokens = tokens.get(1..).unwrap_or_default();
                    return;
                }
                "}" | "," => break,
                "as" => {
                    let alias = rest.first().copied().unwrap_or_default().to_owned();
                    *tokens = rest.get(1..).unwrap_or_default();
                    return self.import(&path, alias, exported);
                }
                "::" => {}
                name => path.push(name.to_owned()),
            }
            *tokens = rest;
        }
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let alias = path.last().cloned().unwrap_or_default();
        self.import(&path, alias, exported);
    }

    fn import(&mut self, path: &[String], alias: String, exported: bool) {
        let Some(path) = self.resolve(path) else { return };
        if self.known.contains(&path) {
            self.aliases.insert(alias.clone(), path.clone());
        }
        if exported {
            self.module.exports.push((alias, path));
        } else if !self.known.contains(&path) {
            self.module.names.insert(path);
        }
    }

    /// A path from the crate's root; none where it leads out of the crate, or nowhere.
    fn resolve(&self, path: &[String]) -> Option<Path> {
        let (first, mut rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Path::new(),
            "self" => self.scope.clone(),
            "super" => self.scope.split_last()?.1.to_vec(),
            name => {
                let child: Path = self.scope.iter().cloned().chain([name.to_owned()]).collect();
                if self.known.contains(&child) { child } else { self.aliases.get(name)?.clone() }
            }
        };
        while let Some(("super", others)) = rest.split_first().map(|(first, rest)| (first.as_str(), rest)) {
            base.pop()?;
            rest = others;
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }
}

/// Identifiers, `::` and single signs.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let in_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let length = if in_name(first) {
            rest.find(|letter| !in_name(letter)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

fn is_name(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// `code` without items that are compiled for tests alone.
pub(crate) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        kept.push_str(&rest[..at]);
        rest = item_end(&rest[at + MARK.len()..]);
    }
    kept + rest
}

/// What follows the first item of `code`.
fn item_end(code: &str) -> &str {
    let mut depth = 0_usize;
    for (at, letter) in code.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth <= 1 => return &code[at + 1..],
            '}' => depth -= 1,
            ';' if depth == 0 => return &code[at + 1..],
            _ => {}
        }
    }
    ""
}

#[test]
fn paths_are_read_from_use_trees_and_expressions() {
    let known = ["", "a", "a::b", "c"]
        .map(|path| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
    let code = "use crate::{a::b, c::{self, One as Two}}; pub use super::Three; use std::fmt; \
                fn f() { b::four(c::FIVE, self::six()) } mod inner { use super::super::seven; }";
    let path = vec!["a".to_owned()];
    let module = read("a.rs", &path, code, &known.into_iter().collect());
    let names: Vec<String> = module.names.iter().map(|path| path.join("::")).collect();
    assert_eq!(names, ["a::b::four", "a::six", "c::FIVE", "c::One", "seven"]);
    assert_eq!(module.exports, [("Three".to_owned(), vec!["Three".to_owned()])]);
}

#[test]
fn test_items_are_left_out() {
    assert_eq!(without_tests("a; #[cfg(test)] mod tests { b { c } } d"), "a;  d");
    assert_eq!(without_tests("#[cfg(test)] mod testing; e"), " e");
}
