//! Checks a resolved dependency tree for known problems of Candle projects. Pure: reads no manifest.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::accelerator::{Accelerator, is_apple};
use crate::tree::{CANDLE_CRATES, Package, Source, Tree, compare};

/// The first release that reports failed Metal command buffers. Earlier releases return garbage.
pub(crate) const RELIABLE_METAL: &str = "0.11.1";

/// A resolved Candle crate that is part of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedCrate {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) source: Source,
    /// The nearest dependents outside of Candle.
    pub(crate) dependents: Vec<Dependent>,
    /// The Candle crates through which it is a transitive dependency, as `name version`. Empty if a dependent
    /// declares it.
    pub(crate) via: Vec<String>,
}

impl ResolvedCrate {
    fn of(tree: &Tree, package: &Package) -> ResolvedCrate {
        let dependent = |dependent: &Package| Dependent {
            name: dependent.name.clone(),
            version: dependent.version.clone(),
            own: matches!(dependent.source, Source::Path(_)),
        };
        let direct: Vec<&Package> =
            tree.packages.iter().filter(|other| tree.depends(other, package)).collect();
        let is_declared = direct.iter().any(|parent| !parent.is_candle());
        let via = direct.iter().filter(|_| !is_declared);
        ResolvedCrate {
            name: package.name.clone(),
            version: package.version.clone(),
            source: package.source.clone(),
            dependents: tree.dependents(package).into_iter().map(dependent).collect(),
            via: via.map(|parent| format!("{} {}", parent.name, parent.version)).collect(),
        }
    }

    /// Whether this is the same resolved package.
    pub(crate) fn is(&self, package: &Package) -> bool {
        self.name == package.name && self.version == package.version && self.source == package.source
    }

    /// The dependent outside of the project, if no package of the project depends on the crate.
    pub(crate) fn foreign_dependent(&self) -> Option<&Dependent> {
        self.dependents.first().filter(|_| self.dependents.iter().all(|dependent| !dependent.own))
    }
}

/// A package outside of Candle that depends on Candle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dependent {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Whether it is a path dependency, whose manifest the user can edit.
    pub(crate) own: bool,
}

/// A problem of the resolved tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The accelerator's feature is on in candle-core and off in candle-nn, which has the fused operations.
    FeatureMissing { accelerator: Accelerator, off: Vec<ResolvedCrate> },
    /// The feature is on in candle-core and candle-nn and off in a crate that only forwards it.
    ForwardedFeatureOff { accelerator: Accelerator, off: Vec<ResolvedCrate> },
    /// One crate in several versions.
    DuplicateVersions { copies: Vec<ResolvedCrate> },
    /// One crate from several sources.
    DuplicateSources { copies: Vec<ResolvedCrate> },
    /// Different crates from different sources.
    MixedSources { copies: Vec<ResolvedCrate> },
    /// Metal with a candle-core that does not report failed command buffers.
    UnreportedMetalErrors { core: ResolvedCrate },
    /// The accelerator's feature is on for a target that does not support it.
    UnavailableAccelerator { accelerator: Accelerator },
    /// Metal is off in every crate for an Apple target.
    AcceleratorOff,
}

/// Whether a finding breaks the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    Error,
    Note,
}

impl Problem {
    pub(crate) fn severity(&self) -> Severity {
        match self {
            Self::FeatureMissing { .. }
            | Self::DuplicateVersions { .. }
            | Self::DuplicateSources { .. }
            | Self::UnreportedMetalErrors { .. } => Severity::Error,
            Self::ForwardedFeatureOff { .. }
            | Self::MixedSources { .. }
            | Self::UnavailableAccelerator { .. }
            | Self::AcceleratorOff => Severity::Note,
        }
    }
}

/// A problem and the targets that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) problem: Problem,
    pub(crate) targets: Vec<String>,
}

impl Finding {
    pub(crate) fn is_error(&self) -> bool {
        self.problem.severity() == Severity::Error
    }
}

/// The findings of all targets, errors first. A problem of several targets is one finding.
pub(crate) fn check(trees: &[(String, Tree)]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for (target, tree) in trees {
        for problem in problems(target, tree) {
            match findings.iter_mut().find(|finding| finding.problem == problem) {
                Some(finding) => finding.targets.push(target.clone()),
                None => findings.push(Finding { problem, targets: vec![target.clone()] }),
            }
        }
    }
    findings.sort_by_key(|finding| !finding.is_error());
    findings
}

fn problems(target: &str, tree: &Tree) -> Vec<Problem> {
    let candle = tree.candle();
    let mut problems = Vec::new();
    for accelerator in Accelerator::ALL {
        let is_on = candle.iter().any(|package| package.has(accelerator.feature()));
        if is_on && !accelerator.exists_on(target) {
            problems.push(Problem::UnavailableAccelerator { accelerator });
        } else if is_on {
            problems.extend(missing_feature(accelerator, tree, &candle));
        }
    }
    problems.extend(duplicates(tree, &candle));
    if is_apple(target) {
        problems.extend(metal_problems(tree, &candle));
    }
    problems
}

/// Checks every candle-core with the accelerator against the crates that use this copy. A copy of another version
/// has its own candle-core.
fn missing_feature(accelerator: Accelerator, tree: &Tree, candle: &[&Package]) -> Vec<Problem> {
    let feature = accelerator.feature();
    let named = |name: &'static str| candle.iter().copied().filter(move |package| package.name == name);
    let mut problems = Vec::new();
    for core in named("candle-core").filter(|core| core.has(feature)) {
        let off: Vec<ResolvedCrate> = ["candle-nn", "candle-transformers"]
            .into_iter()
            .flat_map(named)
            .filter(|package| !package.has(feature) && share_tensors(tree, candle, core, package))
            .map(|package| ResolvedCrate::of(tree, package))
            .collect();
        let problem = if off.iter().any(|copy| copy.name == "candle-nn") {
            Problem::FeatureMissing { accelerator, off }
        } else {
            Problem::ForwardedFeatureOff { accelerator, off }
        };
        let is_empty = matches!(&problem, Problem::ForwardedFeatureOff { off, .. } if off.is_empty());
        if !is_empty && !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}

/// Whether `package` uses tensors of `core`: it depends on this copy, or one package depends on both.
fn share_tensors(tree: &Tree, candle: &[&Package], core: &Package, package: &Package) -> bool {
    let several = candle.iter().filter(|other| other.name == core.name).count() > 1;
    let dependents = tree.dependents(package);
    !several
        || tree.depends(package, core)
        || tree.dependents(core).iter().any(|dependent| dependents.contains(dependent))
}

fn duplicates(tree: &Tree, candle: &[&Package]) -> Option<Problem> {
    let copy = |package: &&Package| ResolvedCrate::of(tree, package);
    let twice: Vec<&Package> = candle
        .iter()
        .filter(|package| candle.iter().filter(|other| other.name == package.name).count() > 1)
        .copied()
        .collect();
    let sources_of = |name: &str| -> BTreeSet<&Source> {
        twice.iter().filter(|package| package.name == name).map(|package| &package.source).collect()
    };
    if CANDLE_CRATES.iter().any(|name| sources_of(name).len() > 1) {
        return Some(Problem::DuplicateSources { copies: twice.iter().map(copy).collect() });
    }
    if !twice.is_empty() {
        return Some(Problem::DuplicateVersions { copies: twice.iter().map(copy).collect() });
    }
    let mut by_origin: BTreeMap<String, Vec<&Package>> = BTreeMap::new();
    for package in candle {
        by_origin.entry(origin(&package.source)).or_default().push(package);
    }
    (by_origin.len() > 1).then(|| Problem::MixedSources { copies: candle.iter().map(copy).collect() })
}

/// A key that is equal for crates of one git checkout, one registry, or path dependencies.
fn origin(source: &Source) -> String {
    match source {
        Source::Registry(name) => format!("registry {name}"),
        Source::Git(commit) => commit.clone(),
        Source::Path(_) => "path".to_owned(),
    }
}

fn metal_problems(tree: &Tree, candle: &[&Package]) -> Option<Problem> {
    let metal = |package: &&&Package| package.has(Accelerator::Metal.feature());
    if candle.is_empty() {
        return None;
    }
    if !candle.iter().any(|package| metal(&package)) {
        return Some(Problem::AcceleratorOff);
    }
    candle
        .iter()
        .filter(metal)
        .filter(|package| package.name == "candle-core")
        .find(|package| compare(&package.version, RELIABLE_METAL).is_lt())
        .map(|package| Problem::UnreportedMetalErrors { core: ResolvedCrate::of(tree, package) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: &str = "aarch64-apple-darwin";
    const LINUX: &str = "x86_64-unknown-linux-gnu";

    fn judged(target: &str, lines: &[&str]) -> Vec<Problem> {
        let output = format!("0||app v0.1.0 (/app)\n{}", lines.join("\n"));
        let tree = Tree::parse(&output).expect("the output is well formed");
        check(&[(target.to_owned(), tree)]).into_iter().map(|finding| finding.problem).collect()
    }

    /// The crates that lack the accelerator, where that is the only problem.
    fn missing(accelerator: Accelerator, problems: &[Problem]) -> Vec<&str> {
        match problems {
            [Problem::FeatureMissing { accelerator: found, off }] if *found == accelerator => {
                off.iter().map(|copy| copy.name.as_str()).collect()
            }
            problems => panic!("{problems:?}"),
        }
    }

    #[test]
    fn metal_in_core_alone_is_the_trap() {
        let lines = ["1|metal|candle-core v0.11.1", "1||candle-nn v0.11.1", "1||candle-transformers v0.11.1"];
        let problems = judged(MAC, &lines);
        assert_eq!(missing(Accelerator::Metal, &problems), ["candle-nn", "candle-transformers"]);
    }

    #[test]
    fn cuda_in_core_alone_is_the_same_trap() {
        let lines = ["1|cuda|candle-core v0.11.1", "1|cudnn|candle-nn v0.11.1"];
        assert_eq!(missing(Accelerator::Cuda, &judged(LINUX, &lines)), ["candle-nn"]);
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
        let problems = judged(MAC, &lines);
        assert!(matches!(problems.as_slice(), [Problem::ForwardedFeatureOff { .. }]), "{problems:?}");
        assert_eq!(problems[0].severity(), Severity::Note);
    }

    #[test]
    fn an_old_release_on_metal_is_an_error_and_on_linux_is_none() {
        let lines = ["1|metal|candle-core v0.11.0", "1|metal|candle-nn v0.11.0"];
        let problems = judged(MAC, &lines);
        assert!(
            matches!(problems.as_slice(), [Problem::UnreportedMetalErrors { core }] if core.version == "0.11.0"),
            "{problems:?}"
        );
        assert_eq!(
            judged(LINUX, &lines),
            [Problem::UnavailableAccelerator { accelerator: Accelerator::Metal }]
        );
    }

    #[test]
    fn two_versions_name_who_asked_for_each() {
        let lines =
            ["1||candle-core v0.11.1", "1||thing v2.0.0", "2||candle-nn v0.10.2", "3||candle-core v0.10.2"];
        let problems = judged(LINUX, &lines);
        let [Problem::DuplicateVersions { copies }] = problems.as_slice() else { panic!("{problems:?}") };
        let told: Vec<(&str, &str, bool)> = copies
            .iter()
            .map(|copy| (copy.version.as_str(), copy.dependents[0].name.as_str(), copy.dependents[0].own))
            .collect();
        assert_eq!(told, [("0.10.2", "thing", false), ("0.11.1", "app", true)]);
    }

    /// The project is right; a dependency brings older copies of its own, without the accelerator.
    const SECOND_COPY: [&str; 7] = [
        "1|metal|candle-core v0.11.1",
        "1|metal|candle-nn v0.11.1",
        "2|metal|candle-core v0.11.1 (*)",
        "1||thing v2.0.0",
        "2||candle-nn v0.10.2",
        "3||candle-core v0.10.2",
        "2||candle-core v0.10.2 (*)",
    ];

    #[test]
    fn a_second_copy_has_a_core_of_its_own_and_lacks_nothing_of_the_first() {
        let problems = judged(MAC, &SECOND_COPY);
        let [Problem::DuplicateVersions { copies }] = problems.as_slice() else { panic!("{problems:?}") };
        let dependents = |copy: &ResolvedCrate| {
            copy.dependents.iter().map(|dependent| dependent.name.clone()).collect::<Vec<_>>()
        };
        for copy in copies {
            let dependent = if copy.version == "0.10.2" { "thing" } else { "app" };
            assert_eq!(dependents(copy), [dependent], "{copy:?}");
        }
        let alone = ["1|metal|candle-core v0.11.1", SECOND_COPY[3], SECOND_COPY[4], SECOND_COPY[5]];
        let problems = judged(MAC, &alone);
        assert!(matches!(problems.as_slice(), [Problem::DuplicateVersions { .. }]), "{problems:?}");
    }

    #[test]
    fn a_feature_that_a_dependency_forgot_in_its_own_copy_is_laid_at_its_door() {
        let mut lines = SECOND_COPY;
        (lines[5], lines[6]) = ("3|metal|candle-core v0.10.2", "2|metal|candle-core v0.10.2 (*)");
        let problems = judged(MAC, &lines);
        let [
            Problem::FeatureMissing { off, .. },
            Problem::DuplicateVersions { .. },
            Problem::UnreportedMetalErrors { core },
        ] = problems.as_slice()
        else {
            panic!("{problems:?}")
        };
        assert_eq!((off.len(), off[0].version.as_str()), (1, "0.10.2"));
        for copy in [&off[0], core] {
            assert_eq!(
                copy.foreign_dependent().map(|dependent| dependent.name.as_str()),
                Some("thing"),
                "{copy:?}"
            );
        }
    }

    #[test]
    fn a_copy_that_came_through_another_crate_of_candle_names_that_crate() {
        let lines = ["1||candle-core v0.11.1", "1||candle-nn v0.10.2", "2||candle-core v0.10.2"];
        let problems = judged(LINUX, &lines);
        let [Problem::DuplicateVersions { copies }] = problems.as_slice() else { panic!("{problems:?}") };
        let told: Vec<(&str, &[String])> =
            copies.iter().map(|copy| (copy.version.as_str(), copy.via.as_slice())).collect();
        assert_eq!(told, [("0.10.2", &["candle-nn 0.10.2".to_owned()][..]), ("0.11.1", &[])]);
    }

    #[test]
    fn one_crate_from_git_and_registry_is_an_error_and_unlike_crates_are_a_note() {
        let git = "1||candle-core v0.11.1 (https://example.org/candle#abcdef12)";
        let problems = judged(LINUX, &[git, "1||candle-nn v0.11.1", "2||candle-core v0.11.1"]);
        assert!(
            matches!(problems.as_slice(), [Problem::DuplicateSources { copies }] if copies.len() == 2),
            "{problems:?}"
        );
        let problems = judged(LINUX, &[git, "1||candle-nn v0.11.1"]);
        assert!(matches!(problems.as_slice(), [Problem::MixedSources { .. }]), "{problems:?}");
    }

    #[test]
    fn an_apple_target_without_metal_is_a_note() {
        assert_eq!(judged(MAC, &["1||candle-core v0.11.1"]), [Problem::AcceleratorOff]);
        assert_eq!(judged(MAC, &[]), []);
    }

    #[test]
    fn a_fault_of_two_targets_is_told_once() {
        let output = "0||app v0.1.0 (/app)\n1||candle-core v0.10.2\n1||candle-core v0.11.1";
        let tree = Tree::parse(output).expect("the output is well formed");
        let findings = check(&[(LINUX.to_owned(), tree.clone()), (MAC.to_owned(), tree)]);
        assert_eq!(findings[0].targets, [LINUX, MAC]);
    }
}
