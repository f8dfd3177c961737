//! Where to turn an accelerator on for the crates that lack it: at the place where candle-core got it.

use super::accelerator::Accelerator;
use super::amend::{Draft, Pair, SOURCE_KEYS, quoted};
use super::declared::{Declaration, FeatureList, Manifest, Table};
use super::raise;
use super::tree::{Package, Source};

/// The platform table for Metal where no line of the user says which.
const MACOS: &str = "cfg(target_os = \"macos\")";

const CORE: &str = "candle-core";
const FUSED: &str = "candle-nn";

/// A place in the user's manifests that turns the accelerator on in candle-core.
#[derive(Clone, Copy)]
enum Switch<'a> {
    /// A list of `[features]`, with the dependency it names.
    List(&'a FeatureList, &'a Declaration),
    /// The dependency's own `features`.
    Line(&'a Declaration),
}

/// What is to be turned on, and where it may be found.
pub(super) struct Constraints<'a> {
    pub(super) accelerator: Accelerator,
    /// The crates that lack it.
    pub(super) off: &'a [String],
    /// candle-nn as it was resolved: what a new line has to name.
    pub(super) fused: Option<&'a Package>,
    /// The lowest version a line may ask for.
    pub(super) version: Option<&'a str>,
    /// Which of the drafts belong to the packages asked about.
    pub(super) roots: &'a [usize],
}

/// Drafts the lines that turn the accelerator on.
pub(super) fn enable(drafts: &mut [Draft], constraints: &Constraints) {
    let manifests: Vec<&Manifest> = drafts.iter().map(|draft| draft.manifest).collect();
    let switches: Vec<(usize, Switch)> =
        (0..manifests.len()).flat_map(|at| switches(at, &manifests, constraints.accelerator)).collect();
    let mut is_named = false;
    for name in constraints.off {
        for &(at, switch) in &switches {
            is_named |= beside_switch(drafts, &manifests, at, switch, name, constraints);
        }
        if switches.is_empty() {
            is_named |= without_switch(drafts, &manifests, name, constraints);
        }
    }
    if !is_named && let Some(fused) = constraints.fused {
        name_it(drafts, &switches, fused, constraints);
    }
}

fn switches<'a>(at: usize, manifests: &[&'a Manifest], accelerator: Accelerator) -> Vec<(usize, Switch<'a>)> {
    let manifest = manifests[at];
    let turns_on = |feature: &str| accelerator.implied_by().contains(&feature);
    let mut found = Vec::new();
    for core in manifest.declares(CORE) {
        let lists = manifest.active_lists().filter(|list| {
            list.items.iter().filter_map(|item| item.split_once('/')).any(|(dependency, feature)| {
                dependency.trim_end_matches('?') == core.key && turns_on(feature)
            })
        });
        found.extend(lists.map(|list| (at, Switch::List(list, core))));
        let shared = core.inherited.then(|| shared(manifests, &core.key)).flatten();
        let lines = [Some(core), shared.map(|(_, shared)| shared)].into_iter().flatten();
        if core.table != Table::Workspace
            && lines.flat_map(|line| &line.features).any(|feature| turns_on(feature))
        {
            found.push((at, Switch::Line(core)));
        }
    }
    found
}

/// The workspace's line for an inherited dependency, with its manifest.
fn shared<'a>(manifests: &[&'a Manifest], key: &str) -> Option<(usize, &'a Declaration)> {
    manifests.iter().enumerate().find_map(|(at, manifest)| {
        let found =
            manifest.declarations.iter().find(|line| line.table == Table::Workspace && line.key == key);
        found.map(|line| (at, line))
    })
}

/// Turns the accelerator on in `name` next to a switch; false if no line of the project names the crate.
fn beside_switch(
    drafts: &mut [Draft],
    manifests: &[&Manifest],
    at: usize,
    switch: Switch,
    name: &str,
    constraints: &Constraints,
) -> bool {
    let feature = constraints.accelerator.feature();
    let own = |name| manifests[at].declares(name).filter(|line| line.table != Table::Workspace);
    match switch {
        Switch::List(list, _) => {
            let Some(line) = own(name).next() else { return false };
            let mark = if line.optional { "?" } else { "" };
            drafts[at].extend(list, &format!("{}{mark}/{feature}", line.key));
        }
        Switch::Line(core) => {
            let Some(line) = own(name).find(|line| line.table == core.table).or_else(|| own(name).next())
            else {
                return false;
            };
            let core_is_shared = core.inherited && core.features.iter().all(|known| known != feature);
            if line.table != core.table && matches!(core.table, Table::Target(_)) {
                drafts[at].add_beside(core, &line.key, &again(line, constraints));
            } else if let Some((root, line)) =
                shared(manifests, &line.key).filter(|_| core_is_shared && line.inherited)
            {
                drafts[root].add_feature(line, feature);
            } else {
                drafts[at].add_feature(line, feature);
            }
        }
    }
    true
}

/// No line of the user turns it on, another package does: Metal then goes to the table for macOS, since a
/// line for every platform would ask for Metal on Linux too.
fn without_switch(
    drafts: &mut [Draft],
    manifests: &[&Manifest],
    name: &str,
    constraints: &Constraints,
) -> bool {
    let mut is_named = false;
    for (draft, manifest) in drafts.iter_mut().zip(manifests) {
        let lines: Vec<&Declaration> =
            manifest.declares(name).filter(|line| line.table != Table::Workspace).collect();
        let for_macos = |line: &&&Declaration| match &line.table {
            Table::Target(target) => target.contains("macos") || target.contains("apple"),
            Table::Dependencies | Table::Workspace => false,
        };
        let Some(&first) = lines.first() else { continue };
        is_named = true;
        match (constraints.accelerator, lines.iter().find(for_macos)) {
            (Accelerator::Cuda, _) => draft.add_feature(first, Accelerator::Cuda.feature()),
            (Accelerator::Metal, Some(line)) => draft.add_feature(line, Accelerator::Metal.feature()),
            (Accelerator::Metal, None) => {
                draft.add_to(&Table::Target(MACOS.to_owned()), &first.key, &again(first, constraints));
            }
        }
    }
    is_named
}

/// candle-nn came along with another crate: names it, so that its feature can be named.
fn name_it(drafts: &mut [Draft], switches: &[(usize, Switch)], fused: &Package, constraints: &Constraints) {
    let feature = constraints.accelerator.feature();
    let source = from_tree(fused, constraints.version);
    let entries_with = |more: &[(&str, String)]| -> Vec<Pair> {
        source
            .iter()
            .cloned()
            .chain(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())))
            .collect()
    };
    let features = ("features", format!("[{}]", quoted(feature)));
    for &(at, switch) in switches {
        let draft = &mut drafts[at];
        let (core, mut lists) = match switch {
            Switch::List(list, core) => (core, vec![list]),
            Switch::Line(core) => (core, Vec::new()),
        };
        if core.optional && lists.is_empty() {
            lists.extend(
                draft
                    .manifest
                    .active_lists()
                    .filter(|list| list.items.iter().any(|item| names(item, &core.key))),
            );
        }
        let entries = match (core.optional, lists.is_empty()) {
            (true, _) => entries_with(&[("optional", "true".to_owned())]),
            (false, true) => entries_with(std::slice::from_ref(&features)),
            (false, false) => entries_with(&[]),
        };
        draft.add_beside(core, FUSED, &entries);
        for list in lists {
            draft.extend(list, &format!("{FUSED}/{feature}"));
        }
    }
    if switches.is_empty() {
        let table = match constraints.accelerator {
            Accelerator::Metal => Table::Target(MACOS.to_owned()),
            Accelerator::Cuda => Table::Dependencies,
        };
        for &root in constraints.roots {
            drafts[root].add_to(&table, FUSED, &entries_with(std::slice::from_ref(&features)));
        }
    }
}

/// Whether an item of a feature list names a dependency.
pub(super) fn names(item: &str, key: &str) -> bool {
    let item = item.strip_prefix("dep:").unwrap_or(item);
    item.split('/').next().map(|name| name.trim_end_matches('?')) == Some(key)
}

/// The entries of a line, written once more for another table, with the accelerator's feature alone.
fn again(line: &Declaration, constraints: &Constraints) -> Vec<Pair> {
    let mut entries: Vec<Pair> = Vec::new();
    for entry in line.entries.iter().filter(|entry| entry.key != "features") {
        let raised = constraints
            .version
            .filter(|_| entry.key == "version")
            .and_then(|version| raise::requirement(entry.value.trim_matches(['"', '\'']), version));
        entries.push((
            entry.key.clone(),
            raised.map_or_else(|| entry.value.clone(), |version| quoted(&version)),
        ));
    }
    entries.push(("features".to_owned(), format!("[{}]", quoted(constraints.accelerator.feature()))));
    entries
}

/// The keys that ask for exactly what was resolved.
fn from_tree(package: &Package, at_least: Option<&str>) -> Vec<Pair> {
    let version =
        at_least.filter(|floor| raise::is_lower(&package.version, floor)).unwrap_or(&package.version);
    let pairs: Vec<(&str, &str)> = match &package.source {
        Source::Registry(name) if name.is_empty() => vec![("version", version)],
        Source::Registry(name) => vec![("version", version), ("registry", name)],
        Source::Git(commit) => {
            let place = commit.split('#').next().unwrap_or_default();
            let (repository, query) = place.split_once('?').unwrap_or((place, ""));
            let reference = query.split_once('=').filter(|(key, _)| SOURCE_KEYS.contains(key));
            std::iter::once(("git", repository)).chain(reference).collect()
        }
        Source::Path(folder) => vec![("path", folder.to_str().unwrap_or_default())],
    };
    pairs.into_iter().map(|(key, value)| (key.to_owned(), quoted(value))).collect()
}
