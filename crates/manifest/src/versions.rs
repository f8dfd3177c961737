//! Raises version requirements, so that all Candle crates resolve to one version.

use crate::editor::{ManifestEditor, SOURCE_KEYS};
use crate::manifest::{Dependency, Table, references};
use crate::tree::compare;

/// Raises every lower requirement to `version`. Returns hints for the renames that source code needs.
pub(crate) fn raise(editors: &mut [ManifestEditor], version: &str) -> Vec<String> {
    let mut hints = Vec::new();
    for editor in editors {
        let manifest = editor.manifest;
        for line in manifest.dependencies.iter().filter(|line| is_from_registry(line)) {
            let Some(current) = line.text("version") else { continue };
            if let Some(raised) = raised_requirement(current, version) {
                match newer_alias(&manifest.dependencies, line) {
                    Some(alias) => hints.push(replace_with_alias(editor, line, alias)),
                    None => editor.edit(line).version = Some(raised),
                }
            }
        }
    }
    hints
}

/// Another key for the same crate in the same table, with a higher requirement. Cargo rejects two keys for one
/// version, so only one of them can remain.
fn newer_alias<'a>(lines: &'a [Dependency], line: &Dependency) -> Option<&'a Dependency> {
    let base = |line: &Dependency| line.text("version").map(base).unwrap_or_default();
    lines
        .iter()
        .filter(|other| other.package == line.package && other.table == line.table && other.key != line.key)
        .filter(|other| is_from_registry(other))
        .filter(|other| compare(&base(line), &base(other)).then_with(|| other.key.cmp(&line.key)).is_lt())
        .max_by(|a, b| compare(&base(a), &base(b)))
}

/// Removes a dependency in favour of its alias, and returns the hint for the source code.
fn replace_with_alias(editor: &mut ManifestEditor, line: &Dependency, alias: &Dependency) -> String {
    let (old, new) = (&line.key, &alias.key);
    let is_needed = line.table == Table::Workspace
        || editor.manifest.features.iter().flat_map(|list| &list.items).any(|item| references(item, old));
    if is_needed {
        return format!("replace `{old}` with `{new}` in the manifests and in the code, and remove: `{old}`");
    }
    editor.edit(line).removed = true;
    for feature in &line.features {
        editor.add_feature(alias, feature);
    }
    format!("in the code, use `{new}` instead of: `{old}`")
}

pub(crate) fn is_from_registry(line: &Dependency) -> bool {
    line.entry("version").is_some()
        && !SOURCE_KEYS
            .iter()
            .filter(|key| ["git", "path"].contains(key))
            .any(|key| line.entry(key).is_some())
}

/// The requirement raised to `version` with its operator kept. `None` if it is not lower.
pub(crate) fn raised_requirement(current: &str, version: &str) -> Option<String> {
    if !is_lower(&base(current), version) {
        return None;
    }
    let operator =
        current.trim().trim_end_matches(|letter: char| !['=', '~', '^', '>', '<'].contains(&letter));
    let keeps = ["=", "^", "~", ">="].contains(&operator);
    Some(if keeps { format!("{operator}{version}") } else { version.to_owned() })
}

pub(crate) fn is_lower(version: &str, than: &str) -> bool {
    compare(version, than).is_lt()
}

/// The first version of a requirement.
fn base(requirement: &str) -> String {
    let first = requirement.split(',').next().unwrap_or_default();
    first.trim_start_matches(|letter: char| !letter.is_ascii_digit()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_requirement_keeps_its_operator() {
        let raised = |current| raised_requirement(current, "0.11.1");
        assert_eq!(raised("0.9.1").as_deref(), Some("0.11.1"));
        assert_eq!(raised("=0.9.1").as_deref(), Some("=0.11.1"));
        assert_eq!(raised("~0.9").as_deref(), Some("~0.11.1"));
        assert_eq!(raised(">=0.9, <0.10").as_deref(), Some("0.11.1"));
        assert_eq!(raised("*").as_deref(), Some("0.11.1"));
        assert_eq!(raised("0.11").as_deref(), Some("0.11.1"));
        assert_eq!(raised("0.11.1"), None);
        assert_eq!(raised("0.12"), None);
    }
}
