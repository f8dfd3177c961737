//! No module cycles: in every crate the imports of modules point in one direction.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::code;
use crate::imports::{Module, Modules, Path, module_path, read, without_tests};
use crate::tree::{File, expect_none, files, folders};

#[test]
fn no_crate_has_a_module_cycle() {
    let mut complaints = Vec::new();
    for folder in folders() {
        let cycles = cycles(&graph(&modules(&folder)));
        complaints.extend(
            cycles
                .iter()
                .map(|cycle| format!("{folder}: these modules import each other:\n  {}", cycle.join("\n  "))),
        );
    }
    expect_none(&complaints);
}

/// The modules of a crate, without test code.
fn modules(folder: &str) -> Modules {
    let prefix = format!("{folder}/src/");
    let files: Vec<_> = files()
        .into_iter()
        .filter(File::is_rust)
        .filter_map(|file| {
            let inside = file.path.strip_prefix(&prefix)?.to_owned();
            let is_test = inside.split('/').any(|part| part == "tests" || part == "tests.rs");
            (!is_test).then(|| (module_path(&inside), file.path, without_tests(&code(&file.text))))
        })
        .collect();
    let known: BTreeSet<Path> = files.iter().map(|(path, ..)| path.clone()).collect();
    files.into_iter().map(|(path, file, code)| (path.clone(), read(&file, &path, &code, &known))).collect()
}

/// For each file the files that it imports, with a path that it names there.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

fn graph(modules: &Modules) -> Graph {
    let mut graph = Graph::new();
    for module in modules.values() {
        let imports = graph.entry(module.file.clone()).or_default();
        for name in &module.names {
            for owner in owners(modules, name, 0) {
                if owner.file != module.file {
                    imports.insert(owner.file.clone(), name.join("::"));
                }
            }
        }
    }
    graph
}

/// The modules that own `name`: the one that defines it, behind any re-exports.
fn owners<'a>(modules: &'a Modules, name: &Path, depth: usize) -> Vec<&'a Module> {
    let Some((at, module)) = (0..=name.len()).rev().find_map(|end| Some((end, modules.get(&name[..end])?)))
    else {
        return Vec::new();
    };
    let Some(item) = name.get(at) else { return vec![module] };
    let exports = module.exports.iter().filter(|(alias, _)| alias == item || alias == "*");
    let behind: Vec<&Module> = exports
        .filter(|_| depth < 8)
        .flat_map(|(alias, target)| {
            let target: Path = match alias.as_str() {
                "*" => target[..target.len() - 1].iter().chain(&name[at..]).cloned().collect(),
                _ => target.iter().chain(&name[at + 1..]).cloned().collect(),
            };
            owners(modules, &target, depth + 1)
        })
        .collect();
    if behind.is_empty() { vec![module] } else { behind }
}

/// The cycles of a graph: each as the lines `file -> file: name` of its imports.
fn cycles(graph: &Graph) -> Vec<Vec<String>> {
    let reach = |from: &str| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(file) = open.pop() {
            for next in graph.get(&file).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = graph.keys().map(|file| (file, reach(file))).collect();
    let (mut cycles, mut done) = (Vec::new(), BTreeSet::new());
    for (file, all) in &reached {
        if !all.contains(*file) || done.contains(*file) {
            continue;
        }
        let is_in = |other: &String| all.contains(other) && reached[other].contains(*file);
        let members: BTreeSet<&String> = graph.keys().filter(|other| is_in(other)).collect();
        let arrows = members.iter().flat_map(|from| {
            let to = graph[*from].iter().filter(|(to, _)| members.contains(to));
            to.map(move |(to, name)| format!("{from} -> {to}: {name}"))
        });
        cycles.push(arrows.collect());
        done.extend(members.into_iter().cloned());
    }
    cycles
}

#[test]
fn a_cycle_is_found_behind_a_re_export() {
    let known: BTreeSet<Path> =
        [vec![], vec!["a".to_owned()], vec!["b".to_owned()], vec!["b".to_owned(), "c".to_owned()]].into();
    let texts = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::Thing;"),
        ("b/mod.rs", "mod c; pub use c::Thing;"),
        ("b/c.rs", "use crate::a::other;"),
    ];
    let modules: Modules = texts
        .into_iter()
        .map(|(file, text)| (module_path(file), read(file, &module_path(file), text, &known)))
        .collect();
    let found = cycles(&graph(&modules));
    assert_eq!(found, [["a.rs -> b/c.rs: b::Thing", "b/c.rs -> a.rs: a::other"]]);
}

#[test]
fn a_parent_that_re_exports_its_children_is_no_cycle() {
    let known: BTreeSet<Path> = [vec![], vec!["a".to_owned()], vec!["b".to_owned()]].into();
    let texts = [("lib.rs", "mod a; mod b; pub use a::One;"), ("a.rs", "use super::b::two;"), ("b.rs", "")];
    let modules: Modules = texts
        .into_iter()
        .map(|(file, text)| (module_path(file), read(file, &module_path(file), text, &known)))
        .collect();
    assert!(cycles(&graph(&modules)).is_empty());
}
