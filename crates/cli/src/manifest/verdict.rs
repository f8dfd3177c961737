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
    /// The crates of Candle that brought it to them, as `name version`; none where they name it themselves.
    pub(super) through: Vec<String>,
}

impl Occurrence {
    fn of(tree: &Tree, package: &Package) -> Occurrence {
        let asker = |asker: &Package| Asker {
            name: asker.name.clone(),
            version: asker.version.clone(),
            own: matches!(asker.source, Source::Path(_)),
        };
        let direct: Vec<&Package> =
            tree.packages.iter().filter(|other| tree.depends(other, package)).collect();
        let is_named = direct.iter().any(|parent| !parent.is_candle());
        let through = direct.iter().filter(|_| !is_named);
        Occurrence {
            name: package.name.clone(),
            version: package.version.clone(),
            source: package.source.clone(),
            asked_by: tree.asked_by(package).into_iter().map(asker).collect(),
            through: through.map(|parent| format!("{} {}", parent.name, parent.version)).collect(),
        }
    }

    /// Whether this is that package.
    pub(super) fn is(&self, package: &Package) -> bool {
        self.name == package.name && self.version == package.version && self.source == package.source
    }

    /// The package outside of the project that brought it, where no package of the project asks for it.
    pub(super) fn brought_by(&self) -> Option<&Asker> {
        self.asked_by.first().filter(|_| self.asked_by.iter().all(|asker| !asker.own))
    }
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
    FeatureMissing { accelerator: Accelerator, off: Vec<Occurrence> },
    /// candle-core and candle-nn have it; a crate that only forwards it does not.
    ForwarderOff { accelerator: Accelerator, off: Vec<Occurrence> },
    /// One crate in several versions.
    SeveralVersions { copies: Vec<Occurrence> },
    /// One crate from several sources.
    SeveralSources { copies: Vec<Occurrence> },
    /// Crates from unlike sources, each of them once.
    UnlikeSources { copies: Vec<Occurrence> },
    /// Metal with a candle-core that keeps failed command buffers to itself.
    SilentMetal { core: Occurrence },
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
            faults.extend(missing_feature(accelerator, tree, &candle));
        }
    }
    faults.extend(several(tree, &candle));
    if is_apple(target) {
        faults.extend(metal_at_all(tree, &candle));
    }
    faults
}

/// Every candle-core that has the accelerator is judged with the crates that compute on it: a copy of another
/// version that some dependency brought has a candle-core of its own.
fn missing_feature(accelerator: Accelerator, tree: &Tree, candle: &[&Package]) -> Vec<Fault> {
    let feature = accelerator.feature();
    let named = |name: &'static str| candle.iter().copied().filter(move |package| package.name == name);
    let mut faults = Vec::new();
    for core in named("candle-core").filter(|core| core.has(feature)) {
        let off: Vec<Occurrence> = ["candle-nn", "candle-transformers"]
            .into_iter()
            .flat_map(named)
            .filter(|package| !package.has(feature) && belong_together(tree, candle, core, package))
            .map(|package| Occurrence::of(tree, package))
            .collect();
        let fault = if off.iter().any(|copy| copy.name == "candle-nn") {
            Fault::FeatureMissing { accelerator, off }
        } else {
            Fault::ForwarderOff { accelerator, off }
        };
        let is_empty = matches!(&fault, Fault::ForwarderOff { off, .. } if off.is_empty());
        if !is_empty && !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    faults
}

/// Whether tensors of `core` meet `package`: it depends on that copy, or one package asks for both.
fn belong_together(tree: &Tree, candle: &[&Package], core: &Package, package: &Package) -> bool {
    let several = candle.iter().filter(|other| other.name == core.name).count() > 1;
    let askers = tree.asked_by(package);
    !several || tree.depends(package, core) || tree.asked_by(core).iter().any(|asker| askers.contains(asker))
}

fn several(tree: &Tree, candle: &[&Package]) -> Option<Fault> {
    let copy = |package: &&Package| Occurrence::of(tree, package);
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

fn metal_at_all(tree: &Tree, candle: &[&Package]) -> Option<Fault> {
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
        .map(|package| Fault::SilentMetal { core: Occurrence::of(tree, package) })
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

    /// The crates that lack the accelerator, where that is the only fault.
    fn missing(accelerator: Accelerator, faults: &[Fault]) -> Vec<&str> {
        match faults {
            [Fault::FeatureMissing { accelerator: found, off }] if *found == accelerator => {
                off.iter().map(|copy| copy.name.as_str()).collect()
            }
            faults => panic!("{faults:?}"),
        }
    }

    #[test]
    fn metal_in_core_alone_is_the_trap() {
        let lines = ["1|metal|candle-core v0.11.1", "1||candle-nn v0.11.1", "1||candle-transformers v0.11.1"];
        let faults = judged(MAC, &lines);
        assert_eq!(missing(Accelerator::Metal, &faults), ["candle-nn", "candle-transformers"]);
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
        let faults = judged(MAC, &lines);
        assert!(matches!(faults.as_slice(), [Fault::ForwarderOff { .. }]), "{faults:?}");
        assert_eq!(faults[0].severity(), Severity::Note);
    }

    #[test]
    fn an_old_release_on_metal_is_an_error_and_on_linux_is_none() {
        let lines = ["1|metal|candle-core v0.11.0", "1|metal|candle-nn v0.11.0"];
        let faults = judged(MAC, &lines);
        assert!(
            matches!(faults.as_slice(), [Fault::SilentMetal { core }] if core.version == "0.11.0"),
            "{faults:?}"
        );
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
        let faults = judged(MAC, &SECOND_COPY);
        let [Fault::SeveralVersions { copies }] = faults.as_slice() else { panic!("{faults:?}") };
        let askers =
            |copy: &Occurrence| copy.asked_by.iter().map(|asker| asker.name.clone()).collect::<Vec<_>>();
        for copy in copies {
            let asker = if copy.version == "0.10.2" { "thing" } else { "app" };
            assert_eq!(askers(copy), [asker], "{copy:?}");
        }
        let alone = ["1|metal|candle-core v0.11.1", SECOND_COPY[3], SECOND_COPY[4], SECOND_COPY[5]];
        let faults = judged(MAC, &alone);
        assert!(matches!(faults.as_slice(), [Fault::SeveralVersions { .. }]), "{faults:?}");
    }

    #[test]
    fn a_feature_that_a_dependency_forgot_in_its_own_copy_is_laid_at_its_door() {
        let mut lines = SECOND_COPY;
        (lines[5], lines[6]) = ("3|metal|candle-core v0.10.2", "2|metal|candle-core v0.10.2 (*)");
        let faults = judged(MAC, &lines);
        let [Fault::FeatureMissing { off, .. }, Fault::SeveralVersions { .. }, Fault::SilentMetal { core }] =
            faults.as_slice()
        else {
            panic!("{faults:?}")
        };
        assert_eq!((off.len(), off[0].version.as_str()), (1, "0.10.2"));
        for copy in [&off[0], core] {
            assert_eq!(copy.brought_by().map(|asker| asker.name.as_str()), Some("thing"), "{copy:?}");
        }
    }

    #[test]
    fn a_copy_that_came_through_another_crate_of_candle_names_that_crate() {
        let lines = ["1||candle-core v0.11.1", "1||candle-nn v0.10.2", "2||candle-core v0.10.2"];
        let faults = judged(LINUX, &lines);
        let [Fault::SeveralVersions { copies }] = faults.as_slice() else { panic!("{faults:?}") };
        let told: Vec<(&str, &[String])> =
            copies.iter().map(|copy| (copy.version.as_str(), copy.through.as_slice())).collect();
        assert_eq!(told, [("0.10.2", &["candle-nn 0.10.2".to_owned()][..]), ("0.11.1", &[])]);
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
