//! One version for all of Candle: raises the requirements that ask for less.

use super::amend::{Draft, SOURCE_KEYS};
use super::declared::{Declaration, Table};
use super::enable::names;
use super::tree::compare;

/// Drafts `version` for every line that asks for less. Returns what a program cannot change: names that the
/// code has to stop using.
pub(super) fn raise(drafts: &mut [Draft], version: &str) -> Vec<String> {
    let mut left = Vec::new();
    for draft in drafts {
        let manifest = draft.manifest;
        for line in manifest.declarations.iter().filter(|line| is_from_registry(line)) {
            let Some(asked) = line.text("version") else { continue };
            if let Some(raised) = requirement(asked, version) {
                match twin(&manifest.declarations, line) {
                    Some(twin) => left.push(drop_for(draft, line, twin)),
                    None => draft.amend(line).version = Some(raised),
                }
            }
        }
    }
    left
}

/// Another name for the same crate in the same table, which asks for more. Cargo refuses two names for one
/// version, so that after raising only one of them can stay.
fn twin<'a>(lines: &'a [Declaration], line: &Declaration) -> Option<&'a Declaration> {
    let base = |line: &Declaration| line.text("version").map(base).unwrap_or_default();
    lines
        .iter()
        .filter(|other| other.package == line.package && other.table == line.table && other.key != line.key)
        .filter(|other| is_from_registry(other))
        .filter(|other| compare(&base(line), &base(other)).then_with(|| other.key.cmp(&line.key)).is_lt())
        .max_by(|a, b| compare(&base(a), &base(b)))
}

fn drop_for(draft: &mut Draft, line: &Declaration, twin: &Declaration) -> String {
    let (old, new) = (&line.key, &twin.key);
    let is_needed = line.table == Table::Workspace
        || draft.manifest.lists.iter().flat_map(|list| &list.items).any(|item| names(item, old));
    if is_needed {
        return format!(
            "put `{new}` in the place of `{old}`, in the manifests and in the code, and drop: `{old}`"
        );
    }
    draft.amend(line).removed = true;
    for feature in &line.features {
        draft.add_feature(twin, feature);
    }
    format!("in the code, write `{new}` in the place of: `{old}`")
}

pub(super) fn is_from_registry(line: &Declaration) -> bool {
    line.entry("version").is_some()
        && !SOURCE_KEYS
            .iter()
            .filter(|key| ["git", "path"].contains(key))
            .any(|key| line.entry(key).is_some())
}

/// The requirement that asks for at least `version`, in the manner of the old one; nothing if it does already.
pub(super) fn requirement(asked: &str, version: &str) -> Option<String> {
    if !is_lower(&base(asked), version) {
        return None;
    }
    let operator = asked.trim().trim_end_matches(|letter: char| !['=', '~', '^', '>', '<'].contains(&letter));
    let keeps = ["=", "^", "~", ">="].contains(&operator);
    Some(if keeps { format!("{operator}{version}") } else { version.to_owned() })
}

pub(super) fn is_lower(version: &str, than: &str) -> bool {
    compare(version, than).is_lt()
}

/// The version a requirement begins with.
fn base(asked: &str) -> String {
    let first = asked.split(',').next().unwrap_or_default();
    first.trim_start_matches(|letter: char| !letter.is_ascii_digit()).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_raised_in_its_own_manner() {
        let raised = |asked| requirement(asked, "0.11.1");
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
