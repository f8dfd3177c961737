//! From findings and manifests to the lines to change, and to advice where no line helps.

use super::amend::{Draft, Pair, SOURCE_KEYS};
use super::change::Change;
use super::declared::{Declaration, Manifest};
use super::enable::{Constraints, enable};
use super::raise::{is_from_registry, raise};
use super::tree::{FAMILY, Package, Source, Tree, compare};
use super::verdict::{Fault, Finding, HONEST_METAL, Occurrence};

/// What can be done about the findings.
#[derive(Debug, Default)]
pub(super) struct Remedy {
    /// In the order of files and lines; together they are one fix for all findings, since two findings may
    /// touch the same line.
    pub(super) changes: Vec<Change>,
    /// For each finding, what has to be done beyond changing lines.
    pub(super) advice: Vec<Vec<String>>,
}

/// Works the remedy out. The workspace's manifest comes first, then those of its members.
pub(super) fn remedy(findings: &[Finding], trees: &[(String, Tree)], manifests: &[Manifest]) -> Remedy {
    let mut drafts: Vec<Draft> = manifests.iter().map(Draft::of).collect();
    let version = version_for_all(findings);
    let roots = root_manifests(trees, manifests);
    let packages = || trees.iter().flat_map(|(_, tree)| &tree.packages);
    let mut advice = Vec::new();
    for finding in findings {
        advice.push(match &finding.fault {
            Fault::FeatureMissing { accelerator, off } => {
                let own: Vec<&Occurrence> =
                    off.iter().filter(|copy| !is_a_second_copy(copy, packages())).collect();
                let fused = own.iter().find(|copy| copy.name == "candle-nn");
                let fused = fused.and_then(|copy| packages().find(|package| copy.is(package)));
                let names: Vec<String> = own.iter().map(|copy| copy.name.clone()).collect();
                let (off_here, version) = (names.as_slice(), version.as_deref());
                let constraints =
                    Constraints { accelerator: *accelerator, off: off_here, fused, version, roots: &roots };
                if !own.is_empty() {
                    enable(&mut drafts, &constraints);
                }
                let foreign = off.iter().filter(|copy| is_a_second_copy(copy, packages()));
                foreign.filter_map(|copy| release_with(copy, accelerator.feature())).collect()
            }
            Fault::SeveralVersions { copies } => {
                let highest = version.as_deref().unwrap_or_default();
                let mut left = raise(&mut drafts, highest);
                left.extend(copies.iter().filter_map(|copy| foreign(copy, highest)));
                left
            }
            Fault::SilentMetal { core } if is_a_second_copy(core, packages()) => {
                foreign(core, HONEST_METAL).into_iter().collect()
            }
            Fault::SilentMetal { core } => {
                let version = &core.version;
                let mut left = raise(&mut drafts, HONEST_METAL);
                left.extend(not_raised(manifests, version));
                if findings.iter().any(|finding| matches!(finding.fault, Fault::FeatureMissing { .. })) {
                    left.push(format!(
                        "to stay on `{version}` for now, keep your versions and take only the features"
                    ));
                }
                left
            }
            Fault::SeveralSources { copies } => one_source(&mut drafts, copies),
            Fault::NothingOn => vec![turn_on(manifests)],
            Fault::ForwarderOff { .. } | Fault::UnlikeSources { .. } | Fault::NoSuchAccelerator { .. } => {
                Vec::new()
            }
        });
    }
    Remedy { changes: drafts.iter().flat_map(Draft::changes).collect(), advice }
}

/// Whether a package outside of the project brought this copy beside another one: no line of the project decides
/// its version or its features.
fn is_a_second_copy<'a>(copy: &Occurrence, packages: impl Iterator<Item = &'a Package>) -> bool {
    let mut others = packages.filter(|package| package.name == copy.name && !copy.is(package));
    copy.brought_by().is_some() && others.next().is_some()
}

/// Advice about a dependency that turns an accelerator on in a part of its own copy of Candle.
fn release_with(copy: &Occurrence, feature: &str) -> Option<String> {
    let asker = copy.brought_by()?;
    Some(format!(
        "look for a release of `{0}` that turns `{feature}` on in all crates of Candle; `{0} {1}` leaves it off in: \
         `{2} {3}`",
        asker.name, asker.version, copy.name, copy.version
    ))
}

/// Advice for an old release that no requirement of this project asks for.
fn not_raised(manifests: &[Manifest], version: &str) -> Option<String> {
    let mut lines =
        manifests.iter().flat_map(|manifest| &manifest.declarations).filter(|line| !line.inherited);
    let Some(line) = lines.clone().next() else {
        return Some(format!("see which dependency brings it: `cargo tree --invert candle-core@{version}`"));
    };
    (!lines.any(is_from_registry))
        .then(|| format!("point the source of `{}` at a commit of `{HONEST_METAL}` or later", line.package))
}

/// The lowest version all lines may ask for.
fn version_for_all(findings: &[Finding]) -> Option<String> {
    let mut versions: Vec<&str> = Vec::new();
    for finding in findings {
        match &finding.fault {
            Fault::SilentMetal { .. } => versions.push(HONEST_METAL),
            Fault::SeveralVersions { copies } => {
                versions.extend(copies.iter().map(|copy| copy.version.as_str()));
            }
            Fault::FeatureMissing { .. }
            | Fault::ForwarderOff { .. }
            | Fault::SeveralSources { .. }
            | Fault::UnlikeSources { .. }
            | Fault::NoSuchAccelerator { .. }
            | Fault::NothingOn => {}
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

/// Advice about a copy that a package outside of the project asks for in a version of its own.
fn foreign(copy: &Occurrence, highest: &str) -> Option<String> {
    if copy.version == highest {
        return None;
    }
    let asker = copy.asked_by.iter().find(|asker| !asker.own)?;
    Some(format!(
        "look for a release of `{0}` that uses candle `{highest}`; `{0} {1}` asks for: `{2} {3}`",
        asker.name, asker.version, copy.name, copy.version
    ))
}

/// Gives every line the git or path source that one of them has: who named one wanted it.
fn one_source(drafts: &mut [Draft], copies: &[Occurrence]) -> Vec<String> {
    let manifests: Vec<&Manifest> = drafts.iter().map(|draft| draft.manifest).collect();
    let is_special = |line: &&Declaration| line.entry("git").is_some() || line.entry("path").is_some();
    let lines = |name: &'static str| manifests.iter().flat_map(move |manifest| manifest.declares(name));
    let Some(model) = FAMILY.into_iter().flat_map(lines).find(is_special) else {
        return vec![
            "take all crates of Candle from one source: no line of this project names another".to_owned(),
        ];
    };
    let mut advice = Vec::new();
    for (draft, manifest) in drafts.iter_mut().zip(manifests) {
        for line in manifest.declarations.iter().filter(|line| !line.inherited) {
            let source = source_like(model, line);
            let is_there =
                source.iter().all(|(key, value)| line.entry(key).is_some_and(|it| it.value == *value));
            if model.entry("path").is_some() && !is_there {
                advice.push(format!("give it the source of `{}` as well: `{}`", model.package, line.package));
            } else if !is_there {
                draft.amend(line).source = Some(source);
            }
        }
    }
    for copy in copies.iter().filter(|copy| matches!(copy.source, Source::Registry(_))) {
        if let Some(asker) = copy.asked_by.iter().find(|asker| !asker.own) {
            advice.push(format!(
                "`{} {}` takes `{}` from the registry; name the git source under: `[patch.crates-io]`",
                asker.name, asker.version, copy.name
            ));
        }
    }
    advice
}

fn source_like(model: &Declaration, line: &Declaration) -> Vec<Pair> {
    if model.package == line.package && model.place == line.place {
        return Vec::new();
    }
    let is_source = |key: &str| SOURCE_KEYS.contains(&key) && key != "version";
    let entries = model.entries.iter().filter(|entry| is_source(&entry.key));
    entries.map(|entry| (entry.key.clone(), entry.value.clone())).collect()
}

fn turn_on(manifests: &[Manifest]) -> String {
    let forwards = |item: &String| item.ends_with("/metal");
    let list =
        manifests.iter().flat_map(|manifest| &manifest.lists).find(|list| list.items.iter().any(forwards));
    match list {
        Some(list) => format!("to use Metal, ask with `--features {}`", list.name),
        None => "to use Metal, add `features = [\"metal\"]` to each of: `candle-core`, `candle-nn`, \
                 `candle-transformers`"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests;
