//! Enables an accelerator's feature in the crates that lack it, next to the line that enables it in candle-core.

use crate::accelerator::Accelerator;
use crate::editor::{KeyValue, ManifestEditor, SOURCE_KEYS, quoted};
use crate::manifest::{Dependency, Feature, Manifest, Table, references};
use crate::tree::{Package, Source};
use crate::versions;

/// The target table for Metal when no line of the project names one.
const MACOS: &str = "cfg(target_os = \"macos\")";

const CANDLE_CORE: &str = "candle-core";
const CANDLE_NN: &str = "candle-nn";

/// An entry of the user's manifests that enables the accelerator in candle-core.
#[derive(Clone, Copy)]
enum Activation<'a> {
    /// An entry of `[features]`, with the dependency it names.
    Feature(&'a Feature, &'a Dependency),
    /// The dependency's own `features`.
    Dependency(&'a Dependency),
}

/// The accelerator to enable, and the crates that lack it.
pub(crate) struct EnableRequest<'a> {
    pub(crate) accelerator: Accelerator,
    /// Crates without the accelerator's feature.
    pub(crate) off: &'a [String],
    /// candle-nn as resolved, for a new dependency line.
    pub(crate) candle_nn: Option<&'a Package>,
    /// Minimum version of a requirement.
    pub(crate) version: Option<&'a str>,
    /// Indexes of the editors of the root packages.
    pub(crate) roots: &'a [usize],
}

/// Adds the edits that enable the accelerator.
pub(crate) fn enable(editors: &mut [ManifestEditor], request: &EnableRequest) {
    let manifests: Vec<&Manifest> = editors.iter().map(|editor| editor.manifest).collect();
    let activations: Vec<(usize, Activation)> =
        (0..manifests.len()).flat_map(|at| activations(at, &manifests, request.accelerator)).collect();
    let mut is_declared = false;
    for name in request.off {
        for &(at, activation) in &activations {
            is_declared |= enable_beside(editors, &manifests, at, activation, name, request);
        }
        if activations.is_empty() {
            is_declared |= enable_without_activation(editors, &manifests, name, request);
        }
    }
    if !is_declared && let Some(candle_nn) = request.candle_nn {
        declare_candle_nn(editors, &activations, candle_nn, request);
    }
}

fn activations<'a>(
    at: usize,
    manifests: &[&'a Manifest],
    accelerator: Accelerator,
) -> Vec<(usize, Activation<'a>)> {
    let manifest = manifests[at];
    let enables = |feature: &str| accelerator.implied_by().contains(&feature);
    let mut found = Vec::new();
    for core in manifest.dependencies_on(CANDLE_CORE) {
        let lists = manifest.active_features().filter(|list| {
            list.items
                .iter()
                .filter_map(|item| item.split_once('/'))
                .any(|(dependency, feature)| dependency.trim_end_matches('?') == core.key && enables(feature))
        });
        found.extend(lists.map(|list| (at, Activation::Feature(list, core))));
        let shared = core.inherited.then(|| shared(manifests, &core.key)).flatten();
        let lines = [Some(core), shared.map(|(_, shared)| shared)].into_iter().flatten();
        if core.table != Table::Workspace
            && lines.flat_map(|line| &line.features).any(|feature| enables(feature))
        {
            found.push((at, Activation::Dependency(core)));
        }
    }
    found
}

/// The `[workspace.dependencies]` entry of an inherited dependency, with the index of its manifest.
fn shared<'a>(manifests: &[&'a Manifest], key: &str) -> Option<(usize, &'a Dependency)> {
    manifests.iter().enumerate().find_map(|(at, manifest)| {
        let found =
            manifest.dependencies.iter().find(|line| line.table == Table::Workspace && line.key == key);
        found.map(|line| (at, line))
    })
}

/// Enables the accelerator in the crate `name` next to an activation. Returns false if the project does not
/// declare the crate.
fn enable_beside(
    editors: &mut [ManifestEditor],
    manifests: &[&Manifest],
    at: usize,
    activation: Activation,
    name: &str,
    request: &EnableRequest,
) -> bool {
    let feature = request.accelerator.feature();
    let own = |name| manifests[at].dependencies_on(name).filter(|line| line.table != Table::Workspace);
    match activation {
        Activation::Feature(list, _) => {
            let Some(line) = own(name).next() else { return false };
            let mark = if line.optional { "?" } else { "" };
            editors[at].extend(list, &format!("{}{mark}/{feature}", line.key));
        }
        Activation::Dependency(core) => {
            let Some(line) = own(name).find(|line| line.table == core.table).or_else(|| own(name).next())
            else {
                return false;
            };
            let core_is_shared = core.inherited && core.features.iter().all(|known| known != feature);
            if line.table != core.table && matches!(core.table, Table::Target(_)) {
                editors[at].add_beside(core, &line.key, &copied_entries(line, request));
            } else if let Some((root, line)) =
                shared(manifests, &line.key).filter(|_| core_is_shared && line.inherited)
            {
                editors[root].add_feature(line, feature);
            } else {
                editors[at].add_feature(line, feature);
            }
        }
    }
    true
}

/// Enables the accelerator where another package, not the project, enabled it in candle-core. Metal goes to the
/// target table for macOS, since an unconditional feature would also apply to Linux.
fn enable_without_activation(
    editors: &mut [ManifestEditor],
    manifests: &[&Manifest],
    name: &str,
    request: &EnableRequest,
) -> bool {
    let mut is_declared = false;
    for (editor, manifest) in editors.iter_mut().zip(manifests) {
        let lines: Vec<&Dependency> =
            manifest.dependencies_on(name).filter(|line| line.table != Table::Workspace).collect();
        let for_macos = |line: &&&Dependency| match &line.table {
            Table::Target(target) => target.contains("macos") || target.contains("apple"),
            Table::Dependencies | Table::Workspace => false,
        };
        let Some(&first) = lines.first() else { continue };
        is_declared = true;
        match (request.accelerator, lines.iter().find(for_macos)) {
            (Accelerator::Cuda, _) => editor.add_feature(first, Accelerator::Cuda.feature()),
            (Accelerator::Metal, Some(line)) => editor.add_feature(line, Accelerator::Metal.feature()),
            (Accelerator::Metal, None) => {
                editor.add_to(&Table::Target(MACOS.to_owned()), &first.key, &copied_entries(first, request));
            }
        }
    }
    is_declared
}

/// Declares candle-nn, which only a transitive dependency brings in, so that its feature can be enabled.
fn declare_candle_nn(
    editors: &mut [ManifestEditor],
    activations: &[(usize, Activation)],
    candle_nn: &Package,
    request: &EnableRequest,
) {
    let feature = request.accelerator.feature();
    let source = resolved_source(candle_nn, request.version);
    let entries_with = |more: &[(&str, String)]| -> Vec<KeyValue> {
        source
            .iter()
            .cloned()
            .chain(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())))
            .collect()
    };
    let features = ("features", format!("[{}]", quoted(feature)));
    for &(at, activation) in activations {
        let editor = &mut editors[at];
        let (core, mut lists) = match activation {
            Activation::Feature(list, core) => (core, vec![list]),
            Activation::Dependency(core) => (core, Vec::new()),
        };
        if core.optional && lists.is_empty() {
            lists.extend(
                editor
                    .manifest
                    .active_features()
                    .filter(|list| list.items.iter().any(|item| references(item, &core.key))),
            );
        }
        let entries = match (core.optional, lists.is_empty()) {
            (true, _) => entries_with(&[("optional", "true".to_owned())]),
            (false, true) => entries_with(std::slice::from_ref(&features)),
            (false, false) => entries_with(&[]),
        };
        editor.add_beside(core, CANDLE_NN, &entries);
        for list in lists {
            editor.extend(list, &format!("{CANDLE_NN}/{feature}"));
        }
    }
    if activations.is_empty() {
        let table = match request.accelerator {
            Accelerator::Metal => Table::Target(MACOS.to_owned()),
            Accelerator::Cuda => Table::Dependencies,
        };
        for &root in request.roots {
            editors[root].add_to(&table, CANDLE_NN, &entries_with(std::slice::from_ref(&features)));
        }
    }
}

/// The entries of a dependency, copied for another table, with only the accelerator's feature.
fn copied_entries(line: &Dependency, request: &EnableRequest) -> Vec<KeyValue> {
    let mut entries: Vec<KeyValue> = Vec::new();
    for entry in line.entries.iter().filter(|entry| entry.key != "features") {
        let raised = request
            .version
            .filter(|_| entry.key == "version")
            .and_then(|version| versions::raised_requirement(entry.value.trim_matches(['"', '\'']), version));
        entries.push((
            entry.key.clone(),
            raised.map_or_else(|| entry.value.clone(), |version| quoted(&version)),
        ));
    }
    entries.push(("features".to_owned(), format!("[{}]", quoted(request.accelerator.feature()))));
    entries
}

/// The entries that select the resolved version and source.
fn resolved_source(package: &Package, minimum: Option<&str>) -> Vec<KeyValue> {
    let version =
        minimum.filter(|floor| versions::is_lower(&package.version, floor)).unwrap_or(&package.version);
    let pairs: Vec<(&str, &str)> = match &package.source {
        Source::Registry(name) if name.is_empty() => vec![("version", version)],
        Source::Registry(name) => vec![("version", version), ("registry", name)],
        Source::Git(commit) => {
            let url = commit.split('#').next().unwrap_or_default();
            let (repository, query) = url.split_once('?').unwrap_or((url, ""));
            let reference = query.split_once('=').filter(|(key, _)| SOURCE_KEYS.contains(key));
            std::iter::once(("git", repository)).chain(reference).collect()
        }
        Source::Path(folder) => vec![("path", folder.to_str().unwrap_or_default())],
    };
    pairs.into_iter().map(|(key, value)| (key.to_owned(), quoted(value))).collect()
}
