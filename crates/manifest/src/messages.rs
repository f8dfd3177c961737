//! Code, message, cause and hint of each problem.

use crate::accelerator::Accelerator;
use crate::checks::{Problem, ResolvedCrate};
use crate::tree::Source;

/// The stable code of a problem.
pub(crate) fn code(problem: &Problem) -> &'static str {
    match problem {
        Problem::FeatureMissing { .. } => "feature-missing",
        Problem::ForwardedFeatureOff { .. } => "forwarded-feature-off",
        Problem::DuplicateVersions { .. } => "duplicate-versions",
        Problem::DuplicateSources { .. } => "duplicate-sources",
        Problem::MixedSources { .. } => "mixed-sources",
        Problem::UnreportedMetalErrors { .. } => "unreported-metal-errors",
        Problem::UnavailableAccelerator { .. } => "unavailable-accelerator",
        Problem::AcceleratorOff => "accelerator-off",
    }
}

pub(crate) fn message(problem: &Problem, targets: &[String]) -> String {
    match problem {
        Problem::FeatureMissing { accelerator, off } => {
            format!("`{}` is on in `candle-core` and off in: {}", accelerator.feature(), lacking(off))
        }
        Problem::ForwardedFeatureOff { accelerator, off } => {
            format!(
                "`{}` is on in `candle-core` and `candle-nn` and off in: {}",
                accelerator.feature(),
                lacking(off)
            )
        }
        Problem::DuplicateVersions { copies } => {
            format!("several versions of one crate: {}", describe_copies(copies))
        }
        Problem::DuplicateSources { copies } => {
            format!("one crate from several sources: {}", describe_copies(copies))
        }
        Problem::MixedSources { copies } => {
            format!("Candle crates from different sources: {}", describe_copies(copies))
        }
        Problem::UnreportedMetalErrors { core } => {
            format!("this candle-core does not report Metal errors: `{}`{}", core.version, dependent_of(core))
        }
        Problem::UnavailableAccelerator { accelerator } => {
            let (feature, name) = (accelerator.feature(), accelerator.name());
            format!("`{feature}` is on for a target without {name} support: {}", list(targets))
        }
        Problem::AcceleratorOff => format!("`metal` is off in every Candle crate for: {}", list(targets)),
    }
}

pub(crate) fn cause(problem: &Problem) -> String {
    match problem {
        Problem::FeatureMissing { accelerator, .. } => {
            let (feature, name) = (accelerator.feature(), accelerator.name());
            format!(
                "candle-nn keeps the {name} code of its fused operations behind its own `{feature}` feature; \
                 without it the device opens, matmul runs, and the first fused operation fails with: \
                 `no {feature} implementation for layer-norm` (or rms-norm, softmax-last-dim, rope)"
            )
        }
        Problem::ForwardedFeatureOff { accelerator: Accelerator::Metal, .. } => {
            "up to 0.11.1 candle-transformers only forwards this feature, so nothing fails without it".to_owned()
        }
        Problem::ForwardedFeatureOff { accelerator: Accelerator::Cuda, .. } => {
            "up to 0.11.1 candle-transformers only forwards this feature and selects the fused experts of \
             Qwen3-MoE by it, so nothing fails without it"
                .to_owned()
        }
        Problem::DuplicateVersions { .. } | Problem::DuplicateSources { .. } => {
            "each copy has its own tensor types and its own features: a tensor of one copy has the wrong type for \
             the other, and a feature enabled in one copy is off in the other"
                .to_owned()
        }
        Problem::MixedSources { .. } => {
            "each crate is resolved once, so the project builds; their APIs may still be incompatible".to_owned()
        }
        Problem::UnreportedMetalErrors { .. } => {
            "before 0.11.1 Candle ignores failed Metal command buffers and returns garbage as `Ok`"
                .to_owned()
        }
        Problem::UnavailableAccelerator { accelerator } => {
            format!("this platform has no {}", accelerator.name())
        }
        Problem::AcceleratorOff => "all computation runs on the CPU".to_owned(),
    }
}

/// The hint that does not depend on the project's manifests.
pub(crate) fn general_hint(problem: &Problem) -> Option<&'static str> {
    match problem {
        Problem::UnavailableAccelerator { accelerator: Accelerator::Metal } => Some(
            "if you build there, move the lines with `metal` to \
             `[target.'cfg(target_os = \"macos\")'.dependencies]`, or put them behind a feature of your own",
        ),
        Problem::UnavailableAccelerator { accelerator: Accelerator::Cuda } => Some(
            "if you build there, move the lines with `cuda` to \
             `[target.'cfg(not(target_os = \"macos\"))'.dependencies]`, or put them behind a feature of your own",
        ),
        Problem::ForwardedFeatureOff { .. } => {
            Some("enable the feature there as well, in case a later release needs it")
        }
        Problem::MixedSources { .. } => Some("use one source for all Candle crates if possible"),
        Problem::FeatureMissing { .. }
        | Problem::DuplicateVersions { .. }
        | Problem::DuplicateSources { .. }
        | Problem::UnreportedMetalErrors { .. }
        | Problem::AcceleratorOff => None,
    }
}

pub(crate) fn source(source: &Source) -> String {
    match source {
        Source::Registry(name) if name.is_empty() => "registry".to_owned(),
        Source::Registry(name) => format!("registry {name}"),
        Source::Git(commit) => commit.clone(),
        Source::Path(folder) => folder.display().to_string(),
    }
}

pub(crate) fn list<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{}`", word.as_ref())).collect();
    words.join(", ")
}

fn describe_copies(copies: &[ResolvedCrate]) -> String {
    let descriptions = copies.iter().map(|copy| {
        let dependents: Vec<String> = copy
            .dependents
            .iter()
            .map(|dependent| format!("{} {}", dependent.name, dependent.version))
            .collect();
        let (name, version) = (&copy.name, &copy.version);
        let via = if copy.via.is_empty() { String::new() } else { format!(" through {}", list(&copy.via)) };
        format!("`{name} {version}` from `{}` (for {}{via})", source(&copy.source), list(&dependents))
    });
    descriptions.collect::<Vec<String>>().join(", ")
}

/// The crates that lack a feature. Copies of a foreign dependency are listed with version and dependent.
fn lacking(off: &[ResolvedCrate]) -> String {
    let descriptions = off.iter().map(|copy| match copy.foreign_dependent() {
        Some(_) => format!("`{} {}`{}", copy.name, copy.version, dependent_of(copy)),
        None => format!("`{}`", copy.name),
    });
    descriptions.collect::<Vec<String>>().join(", ")
}

/// The foreign dependent of a copy in parentheses, or an empty string.
fn dependent_of(copy: &ResolvedCrate) -> String {
    let dependent = copy.foreign_dependent();
    dependent.map(|it| format!(" (for `{} {}`)", it.name, it.version)).unwrap_or_default()
}
