//! What is wrong in a resolved tree: a pure judgement, without a look at any manifest.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::accelerator::{Accelerator, is_apple};
use super::tree::{FAMILY, Package, Source, Tree, compare};

/// The first release whose Metal code reports a failed command buffer instead of returning garbage.
pub(super) const HONEST_METAL: &str = "0.11.1";

/// A crate that came more than once, or in company that does not suit it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) source: Source,
    /// Who asked for it, as `name version`; the user's own packages are marked as such.
    pub(super) asked_by: Vec<Asker>,
}

/// A package outside of Candle that depends on Candle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asker {
    pub(super) name: String,
    pub(super) version: String,
    /// Whether it lies in a folder of the user, whose lines can be changed.
    pub(super) own: bool,
}

/// What is the matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// candle-core has the accelerator, the crate with the fused operations does not.
    FeatureMissing { accelerator: Accelerator, off: Vec<String> },
    /// candle-core and candle-nn have it; a crate that only forwards it does not.
    ForwarderOff { accelerator: Accelerator, off: Vec<String> },
    /// One crate in several versions.
    SeveralVersions { copies: Vec<Occurrence> },
    /// One crate from several sources.
    SeveralSources { copies: Vec<Occurrence> },
    /// Crates from unlike sources, each of them once.
    UnlikeSources { copies: Vec<Occurrence> },
    /// Metal with a candle-core that keeps failed command buffers to itself.
    SilentMetal { version: String },
    /// An accelerator is on for a target that has none.
    NoSuchAccelerator { accelerator: Accelerator },
    /// An Apple target, and Metal is on nowhere.
    NothingOn,
}

/// Whether a finding makes the project unsound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Error,
    Note,
}

impl Fault {
    pub(super) fn severity(&self) -> Severity {
        match self {
            Self::FeatureMissing { .. }
            | Self::SeveralVersions { .. }
            | Self::SeveralSources { .. }
            | Self::SilentMetal { .. } => Severity::Error,
            Self::ForwarderOff { .. }
            | Self::UnlikeSources { .. }
            | Self::NoSuchAccelerator { .. }
            | Self::NothingOn => Severity::Note,
        }
    }
}

/// A fault and the targets it was seen for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) fault: Fault,
    pub(super) targets: Vec<String>,
}

impl Finding {
    pub(super) fn is_error(&self) -> bool {
        self.fault.severity() == Severity::Error
    }
}

/// The findings over all targets, errors first; a fault seen for several targets is told once.
pub(super) fn judge(trees: &[(String, Tree)]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (target, tree) in trees {
        for fault in faults(target, tree) {
            match findings.iter_mut().find(|finding| finding.fault == fault) {
                Some(finding) => finding.targets.push(target.clone()),
                None => findings.push(Finding { fault, targets: vec![target.clone()] }),
            }
        }
    }
    findings.sort_by_key(|finding| !finding.is_error());
    findings
}

fn faults(target: &str, tree: &Tree) -> Vec<Fault> {
    let candle = tree.candle();
    let mut faults = Vec::new();
    for accelerator in Accelerator::ALL {
        let is_on = candle.iter().any(|package| package.has(accelerator.feature()));
        if is_on && !accelerator.exists_on(target) {
            faults.push(Fault::NoSuchAccelerator { accelerator });
        } else if is_on {
            faults.extend(missing_feature(accelerator, &candle));
        }
    }
    faults.extend(several(tree, &candle));
    if is_apple(target) {
        faults.extend(metal_at_all(&candle));
    }
    faults
}

fn missing_feature(accelerator: Accelerator, candle: &[&Package]) -> Option<Fault> {
    let feature = accelerator.feature();
    let lacks = |name: &str| candle.iter().any(|package| package.name == name && !package.has(feature));
    let core_has = candle.iter().any(|package| package.name == "candle-core" && package.has(feature));
    if !core_has {
        return None;
    }
    let off: Vec<String> = ["candle-nn", "candle-transformers"]
        .into_iter()
        .filter(|name| lacks(name))
        .map(str::to_owned)
        .collect();
    if lacks("candle-nn") {
        Some(Fault::FeatureMissing { accelerator, off })
    } else if off.is_empty() {
        None
    } else {
        Some(Fault::ForwarderOff { accelerator, off })
    }
}

fn several(tree: &Tree, candle: &[&Package]) -> Option<Fault> {
    let copy = |package: &&Package| Occurrence {
        name: package.name.clone(),
        version: package.version.clone(),
        source: package.source.clone(),
        asked_by: tree
            .asked_by(package)
            .into_iter()
            .map(|asker| Asker {
                name: asker.name.clone(),
                version: asker.version.clone(),
                own: matches!(asker.source, Source::Path(_)),
            })
            .collect(),
    };
    let twice: Vec<&Package> = candle
        .iter()
        .filter(|package| candle.iter().filter(|other| other.name == package.name).count() > 1)
        .copied()
        .collect();
    let sources_of = |name: &str| -> BTreeSet<&Source> {
        twice.iter().filter(|package| package.name == name).map(|package| &package.source).collect()
    };
    if FAMILY.iter().any(|name| sources_of(name).len() > 1) {
        return Some(Fault::SeveralSources { copies: twice.iter().map(copy).collect() });
    }
    if !twice.is_empty() {
        return Some(Fault::SeveralVersions { copies: twice.iter().map(copy).collect() });
    }
    let mut by_origin: BTreeMap<String, Vec<&Package>> = BTreeMap::new();
    for package in candle {
        by_origin.entry(origin(&package.source)).or_default().push(package);
    }
    (by_origin.len() > 1).then(|| Fault::UnlikeSources { copies: candle.iter().map(copy).collect() })
}

/// What crates of one checkout or one registry have in common.
fn origin(source: &Source) -> String {
    match source {
        Source::Registry(name) => format!("registry {name}"),
        Source::Git(commit) => commit.clone(),
        Source::Path(_) => "path".to_owned(),
    }
}

fn metal_at_all(candle: &[&Package]) -> Option<Fault> {
    let metal = |package: &&&Package| package.has(Accelerator::Metal.feature());
    if candle.is_empty() {
        return None;
    }
    if !candle.iter().any(|package| metal(&package)) {
        return Some(Fault::NothingOn);
    }
    candle
        .iter()
        .filter(metal)
        .filter(|package| package.name == "candle-core")
        .find(|package| compare(&package.version, HONEST_METAL).is_lt())
        .map(|package| Fault::SilentMetal { version: package.version.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "aarch64-apple-darwin";
    const LINUX: &str = "x86_64-unknown-linux-gnu";

    fn judged(target: &str, lines: &[&str]) -> Vec<Fault> {
        let output = format!("0||app v0.1.0 (/app)\n{}", lines.join("\n"));
        let tree = Tree::parse(&output).expect("the output is well formed");
        judge(&[(target.to_owned(), tree)]).into_iter().map(|finding| finding.fault).collect()
    }

    fn missing(accelerator: Accelerator, off: &[&str]) -> Fault {
        Fault::FeatureMissing { accelerator, off: off.iter().map(|&name| name.to_owned()).collect() }
    }

    #[test]
    fn metal_in_core_alone_is_the_trap() {
        let lines = ["1|metal|candle-core v0.11.1", "1||candle-nn v0.11.1", "1||candle-transformers v0.11.1"];
        assert_eq!(judged(MAC, &lines), [missing(Accelerator::Metal, &["candle-nn", "candle-transformers"])]);
    }

    #[test]
    fn cuda_in_core_alone_is_the_same_trap() {
        let lines = ["1|cuda|candle-core v0.11.1", "1|cudnn|candle-nn v0.11.1"];
        assert_eq!(judged(LINUX, &lines), [missing(Accelerator::Cuda, &["candle-nn"])]);
    }

    #[test]
    fn metal_on_every_crate_is_sound() {
        let lines = [
            "1|metal|candle-core v0.11.1",
            "1|metal|candle-nn v0.11.1",
            "1|metal|candle-transformers v0.11.1",
        ];
        assert_eq!(judged(MAC, &lines), []);
    }

    #[test]
    fn a_forwarder_without_the_feature_is_only_a_note() {
        let lines =
            ["1|metal|candle-core v0.11.1", "1|metal|candle-nn v0.11.1", "1||candle-transformers v0.11.1"];
        let faults = judged(MAC, &lines);
        assert!(matches!(faults.as_slice(), [Fault::ForwarderOff { .. }]), "{faults:?}");
        assert_eq!(faults[0].severity(), Severity::Note);
    }

    #[test]
    fn an_old_release_on_metal_is_an_error_and_on_linux_is_none() {
        let lines = ["1|metal|candle-core v0.11.0", "1|metal|candle-nn v0.11.0"];
        assert_eq!(judged(MAC, &lines), [Fault::SilentMetal { version: "0.11.0".to_owned() }]);
        assert_eq!(judged(LINUX, &lines), [Fault::NoSuchAccelerator { accelerator: Accelerator::Metal }]);
    }

    #[test]
    fn two_versions_name_who_asked_for_each() {
        let lines =
            ["1||candle-core v0.11.1", "1||thing v2.0.0", "2||candle-nn v0.10.2", "3||candle-core v0.10.2"];
        let faults = judged(LINUX, &lines);
        let [Fault::SeveralVersions { copies }] = faults.as_slice() else { panic!("{faults:?}") };
        let told: Vec<(&str, &str, bool)> = copies
            .iter()
            .map(|copy| (copy.version.as_str(), copy.asked_by[0].name.as_str(), copy.asked_by[0].own))
            .collect();
        assert_eq!(told, [("0.10.2", "thing", false), ("0.11.1", "app", true)]);
    }

    #[test]
    fn one_crate_from_git_and_registry_is_an_error_and_unlike_crates_are_a_note() {
        let git = "1||candle-core v0.11.1 (https://example.org/candle#abcdef12)";
        let faults = judged(LINUX, &[git, "1||candle-nn v0.11.1", "2||candle-core v0.11.1"]);
        assert!(
            matches!(faults.as_slice(), [Fault::SeveralSources { copies }] if copies.len() == 2),
            "{faults:?}"
        );
        let faults = judged(LINUX, &[git, "1||candle-nn v0.11.1"]);
        assert!(matches!(faults.as_slice(), [Fault::UnlikeSources { .. }]), "{faults:?}");
    }

    #[test]
    fn an_apple_target_without_metal_is_a_note() {
        assert_eq!(judged(MAC, &["1||candle-core v0.11.1"]), [Fault::NothingOn]);
        assert_eq!(judged(MAC, &[]), []);
    }

    #[test]
    fn a_fault_of_two_targets_is_told_once() {
        let output = "0||app v0.1.0 (/app)\n1||candle-core v0.10.2\n1||candle-core v0.11.1";
        let tree = Tree::parse(output).expect("the output is well formed");
        let findings = judge(&[(LINUX.to_owned(), tree.clone()), (MAC.to_owned(), tree)]);
        assert_eq!(findings[0].targets, [LINUX, MAC]);
    }
}
