//! Computes the manifest edits that fix the findings, and hints where an edit is not enough.

use crate::change::Change;
use crate::checks::{Finding, Problem, RELIABLE_METAL, ResolvedCrate};
use crate::editor::{KeyValue, ManifestEditor, SOURCE_KEYS};
use crate::features::{EnableRequest, enable};
use crate::manifest::{Dependency, Manifest};
use crate::tree::{CANDLE_CRATES, Package, Source, Tree, compare};
use crate::versions::{is_from_registry, raise};

/// The fix for all findings.
#[derive(Debug, Default)]
pub(crate) struct Fix {
    /// One set of changes for all findings, in the order of files and lines, since findings can share a line.
    pub(crate) changes: Vec<Change>,
    /// Hints for each finding, beyond the changes.
    pub(crate) hints: Vec<Vec<String>>,
}

/// Computes the fix. `manifests` starts with the workspace root's.
pub(crate) fn fix(findings: &[Finding], trees: &[(String, Tree)], manifests: &[Manifest]) -> Fix {
    let mut editors: Vec<ManifestEditor> = manifests.iter().map(ManifestEditor::of).collect();
    let version = version_for_all(findings);
    let roots = root_manifests(trees, manifests);
    let packages = || trees.iter().flat_map(|(_, tree)| &tree.packages);
    let mut hints = Vec::new();
    for finding in findings {
        hints.push(match &finding.problem {
            Problem::FeatureMissing { accelerator, off } => {
                let own: Vec<&ResolvedCrate> =
                    off.iter().filter(|copy| !is_a_second_copy(copy, packages())).collect();
                let candle_nn = own.iter().find(|copy| copy.name == "candle-nn");
                let candle_nn = candle_nn.and_then(|copy| packages().find(|package| copy.is(package)));
                let names: Vec<String> = own.iter().map(|copy| copy.name.clone()).collect();
                let (off_here, version) = (names.as_slice(), version.as_deref());
                let request =
                    EnableRequest { accelerator: *accelerator, off: off_here, candle_nn, version, roots: &roots };
                if !own.is_empty() {
                    enable(&mut editors, &request);
                }
                let foreign = off.iter().filter(|copy| is_a_second_copy(copy, packages()));
                foreign.filter_map(|copy| release_with(copy, accelerator.feature())).collect()
            }
            Problem::DuplicateVersions { copies } => {
                let highest = version.as_deref().unwrap_or_default();
                let mut hints = raise(&mut editors, highest);
                hints.extend(copies.iter().filter_map(|copy| foreign_release(copy, highest)));
                hints
            }
            Problem::UnreportedMetalErrors { core } if is_a_second_copy(core, packages()) => {
                foreign_release(core, RELIABLE_METAL).into_iter().collect()
            }
            Problem::UnreportedMetalErrors { core } => {
                let version = &core.version;
                let mut hints = raise(&mut editors, RELIABLE_METAL);
                hints.extend(not_raised(manifests, version));
                if findings.iter().any(|finding| matches!(finding.problem, Problem::FeatureMissing { .. })) {
                    hints.push(format!(
                        "to stay on `{version}` for now, keep your versions and apply only the feature changes"
                    ));
                }
                hints
            }
            Problem::DuplicateSources { copies } => one_source(&mut editors, copies),
            Problem::AcceleratorOff => vec![enable_metal(manifests)],
            Problem::ForwardedFeatureOff { .. } | Problem::MixedSources { .. } | Problem::UnavailableAccelerator { .. } => {
                Vec::new()
            }
        });
    }
    Fix { changes: editors.iter().flat_map(ManifestEditor::changes).collect(), hints }
}

/// Whether only a package outside of the project depends on this copy, beside another copy. No line of the
/// project controls its version or features.
fn is_a_second_copy<'a>(copy: &ResolvedCrate, packages: impl Iterator<Item = &'a Package>) -> bool {
    let mut others = packages.filter(|package| package.name == copy.name && !copy.is(package));
    copy.foreign_dependent().is_some() && others.next().is_some()
}

/// The hint about a dependency that enables an accelerator in only some crates of its own copy of Candle.
fn release_with(copy: &ResolvedCrate, feature: &str) -> Option<String> {
    let dependent = copy.foreign_dependent()?;
    Some(format!(
        "look for a release of `{0}` that enables `{feature}` in all Candle crates; `{0} {1}` leaves it off in: \
         `{2} {3}`",
        dependent.name, dependent.version, copy.name, copy.version
    ))
}

/// The hint about an old release that no requirement of the project selects.
fn not_raised(manifests: &[Manifest], version: &str) -> Option<String> {
    let mut lines =
        manifests.iter().flat_map(|manifest| &manifest.dependencies).filter(|line| !line.inherited);
    let Some(line) = lines.clone().next() else {
        return Some(format!(
            "see which dependency requires it: `cargo tree --invert candle-core@{version}`"
        ));
    };
    (!lines.any(is_from_registry))
        .then(|| format!("point the source of `{}` at a commit of `{RELIABLE_METAL}` or later", line.package))
}

/// The minimum version for all requirements.
fn version_for_all(findings: &[Finding]) -> Option<String> {
    let mut versions: Vec<&str> = Vec::new();
    for finding in findings {
        match &finding.problem {
            Problem::UnreportedMetalErrors { .. } => versions.push(RELIABLE_METAL),
            Problem::DuplicateVersions { copies } => {
                versions.extend(copies.iter().map(|copy| copy.version.as_str()));
            }
            Problem::FeatureMissing { .. }
            | Problem::ForwardedFeatureOff { .. }
            | Problem::DuplicateSources { .. }
            | Problem::MixedSources { .. }
            | Problem::UnavailableAccelerator { .. }
            | Problem::AcceleratorOff => {}
        }
    }
    versions.into_iter().max_by(|a, b| compare(a, b)).map(str::to_owned)
}

fn root_manifests(trees: &[(String, Tree)], manifests: &[Manifest]) -> Vec<usize> {
    let is_root = |manifest: &Manifest| {
        trees.iter().any(|(_, tree)| {
            tree.roots.iter().any(|&root| match &tree.packages[root].source {
                Source::Path(folder) => manifest.file.parent() == Some(folder),
                Source::Registry(_) | Source::Git(_) => false,
            })
        })
    };
    manifests.iter().enumerate().filter(|(_, manifest)| is_root(manifest)).map(|(at, _)| at).collect()
}

/// The hint about a copy that a package outside of the project requires in its own version.
fn foreign_release(copy: &ResolvedCrate, highest: &str) -> Option<String> {
    if copy.version == highest {
        return None;
    }
    let dependent = copy.dependents.iter().find(|dependent| !dependent.own)?;
    Some(format!(
        "look for a release of `{0}` that uses candle `{highest}`; `{0} {1}` requires: `{2} {3}`",
        dependent.name, dependent.version, copy.name, copy.version
    ))
}

/// Gives every dependency the git or path source that one of them declares.
fn one_source(editors: &mut [ManifestEditor], copies: &[ResolvedCrate]) -> Vec<String> {
    let manifests: Vec<&Manifest> = editors.iter().map(|editor| editor.manifest).collect();
    let is_special = |line: &&Dependency| line.entry("git").is_some() || line.entry("path").is_some();
    let lines =
        |name: &'static str| manifests.iter().flat_map(move |manifest| manifest.dependencies_on(name));
    let Some(model) = CANDLE_CRATES.into_iter().flat_map(lines).find(is_special) else {
        return vec![
            "use one source for all Candle crates; no line of this project declares another source"
                .to_owned(),
        ];
    };
    let mut hints = Vec::new();
    for (editor, manifest) in editors.iter_mut().zip(manifests) {
        for line in manifest.dependencies.iter().filter(|line| !line.inherited) {
            let source = source_like(model, line);
            let is_there =
                source.iter().all(|(key, value)| line.entry(key).is_some_and(|it| it.value == *value));
            if model.entry("path").is_some() && !is_there {
                hints.push(format!("use the source of `{}` for: `{}`", model.package, line.package));
            } else if !is_there {
                editor.edit(line).source = Some(source);
            }
        }
    }
    for copy in copies.iter().filter(|copy| matches!(copy.source, Source::Registry(_))) {
        if let Some(dependent) = copy.dependents.iter().find(|dependent| !dependent.own) {
            hints.push(format!(
                "`{} {}` uses `{}` from the registry; add the git source to: `[patch.crates-io]`",
                dependent.name, dependent.version, copy.name
            ));
        }
    }
    hints
}

fn source_like(model: &Dependency, line: &Dependency) -> Vec<KeyValue> {
    if model.package == line.package && model.span == line.span {
        return Vec::new();
    }
    let is_source = |key: &str| SOURCE_KEYS.contains(&key) && key != "version";
    let entries = model.entries.iter().filter(|entry| is_source(&entry.key));
    entries.map(|entry| (entry.key.clone(), entry.value.clone())).collect()
}

fn enable_metal(manifests: &[Manifest]) -> String {
    let forwards = |item: &String| item.ends_with("/metal");
    let list =
        manifests.iter().flat_map(|manifest| &manifest.features).find(|list| list.items.iter().any(forwards));
    match list {
        Some(list) => format!("to use Metal, build with `--features {}`", list.name),
        None => "to use Metal, add `features = [\"metal\"]` to each of: `candle-core`, `candle-nn`, \
                 `candle-transformers`"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
