//! What each finding is called and how it is told: code, message, cause, hint.

use super::accelerator::Accelerator;
use super::tree::Source;
use super::verdict::{Fault, Occurrence};

/// A stable name for programs.
pub(super) fn code(fault: &Fault) -> &'static str {
    match fault {
        Fault::FeatureMissing { .. } => "feature-missing",
        Fault::ForwarderOff { .. } => "forwarder-off",
        Fault::SeveralVersions { .. } => "several-versions",
        Fault::SeveralSources { .. } => "several-sources",
        Fault::UnlikeSources { .. } => "unlike-sources",
        Fault::SilentMetal { .. } => "silent-metal",
        Fault::NoSuchAccelerator { .. } => "no-such-accelerator",
        Fault::NothingOn => "nothing-on",
    }
}

pub(super) fn message(fault: &Fault, targets: &[String]) -> String {
    match fault {
        Fault::FeatureMissing { accelerator, off } => {
            format!("`{}` is on in `candle-core` and off in: {}", accelerator.feature(), lacking(off))
        }
        Fault::ForwarderOff { accelerator, off } => {
            format!(
                "`{}` is on in `candle-core` and `candle-nn` and off in: {}",
                accelerator.feature(),
                lacking(off)
            )
        }
        Fault::SeveralVersions { copies } => {
            format!("several versions of one crate: {}", occurrences(copies))
        }
        Fault::SeveralSources { copies } => {
            format!("one crate from several sources: {}", occurrences(copies))
        }
        Fault::UnlikeSources { copies } => {
            format!("crates of Candle from unlike sources: {}", occurrences(copies))
        }
        Fault::SilentMetal { core } => {
            format!("Metal with a candle that hides its failures: `{}`{}", core.version, brought(core))
        }
        Fault::NoSuchAccelerator { accelerator } => {
            let (feature, name) = (accelerator.feature(), accelerator.name());
            format!("`{feature}` is on for a target without {name}: {}", list(targets))
        }
        Fault::NothingOn => format!("`metal` is off in every crate of Candle for: {}", list(targets)),
    }
}

pub(super) fn cause(fault: &Fault) -> String {
    match fault {
        Fault::FeatureMissing { accelerator, .. } => {
            let (feature, name) = (accelerator.feature(), accelerator.name());
            format!(
                "candle-nn keeps the {name} code of its fused operations behind its own `{feature}` feature; \
                 without it the device opens, matmul runs, and the first such operation fails with: \
                 `no {feature} implementation for layer-norm` (or rms-norm, softmax-last-dim, rope)"
            )
        }
        Fault::ForwarderOff { accelerator: Accelerator::Metal, .. } => {
            "up to 0.11.1 candle-transformers does no more than forward the feature: nothing fails for it"
                .to_owned()
        }
        Fault::ForwarderOff { accelerator: Accelerator::Cuda, .. } => {
            "up to 0.11.1 candle-transformers chooses the fused experts of Qwen3-MoE by it, and forwards it: \
             nothing fails for it"
                .to_owned()
        }
        Fault::SeveralVersions { .. } | Fault::SeveralSources { .. } => {
            "each copy has tensors and features of its own: a tensor of one does not fit the other, and a \
             feature turned on in one is off in the other"
                .to_owned()
        }
        Fault::UnlikeSources { .. } => {
            "each crate is there once, so it builds; mind that they fit".to_owned()
        }
        Fault::SilentMetal { .. } => {
            "before 0.11.1 a command buffer that failed on the GPU went unnoticed: garbage came back as `Ok`"
                .to_owned()
        }
        Fault::NoSuchAccelerator { accelerator } => {
            format!("there is no {} on this platform", accelerator.name())
        }
        Fault::NothingOn => "everything computes on the CPU".to_owned(),
    }
}

/// What to do, where it does not follow from the project's lines.
pub(super) fn standing_hint(fault: &Fault) -> Option<&'static str> {
    match fault {
        Fault::NoSuchAccelerator { accelerator: Accelerator::Metal } => Some(
            "if you build there, move the lines with `metal` to \
             `[target.'cfg(target_os = \"macos\")'.dependencies]`, or put them behind a feature of your own",
        ),
        Fault::NoSuchAccelerator { accelerator: Accelerator::Cuda } => Some(
            "if you build there, move the lines with `cuda` to \
             `[target.'cfg(not(target_os = \"macos\"))'.dependencies]`, or put them behind a feature of your own",
        ),
        Fault::ForwarderOff { .. } => {
            Some("name the feature there as well, and a later release cannot surprise you")
        }
        Fault::UnlikeSources { .. } => Some("take all of them from one source where you can"),
        Fault::FeatureMissing { .. }
        | Fault::SeveralVersions { .. }
        | Fault::SeveralSources { .. }
        | Fault::SilentMetal { .. }
        | Fault::NothingOn => None,
    }
}

pub(super) fn source(source: &Source) -> String {
    match source {
        Source::Registry(name) if name.is_empty() => "registry".to_owned(),
        Source::Registry(name) => format!("registry {name}"),
        Source::Git(commit) => commit.clone(),
        Source::Path(folder) => folder.display().to_string(),
    }
}

pub(super) fn list<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{}`", word.as_ref())).collect();
    words.join(", ")
}

fn occurrences(copies: &[Occurrence]) -> String {
    let told = copies.iter().map(|copy| {
        let askers: Vec<String> =
            copy.asked_by.iter().map(|asker| format!("{} {}", asker.name, asker.version)).collect();
        let (name, version) = (&copy.name, &copy.version);
        let through =
            if copy.through.is_empty() { String::new() } else { format!(" through {}", list(&copy.through)) };
        format!("`{name} {version}` from `{}` (for {}{through})", source(&copy.source), list(&askers))
    });
    told.collect::<Vec<String>>().join(", ")
}

/// The crates that lack a feature; those that a dependency brought with their version and that dependency.
fn lacking(off: &[Occurrence]) -> String {
    let told = off.iter().map(|copy| match copy.brought_by() {
        Some(_) => format!("`{} {}`{}", copy.name, copy.version, brought(copy)),
        None => format!("`{}`", copy.name),
    });
    told.collect::<Vec<String>>().join(", ")
}

/// The dependency that brought a copy, in brackets.
fn brought(copy: &Occurrence) -> String {
    let told = copy.brought_by().map(|asker| format!(" (for `{} {}`)", asker.name, asker.version));
    told.unwrap_or_default()
}
