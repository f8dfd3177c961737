//! A diagnosis on paper: text for people, JSON for programs.

use std::fmt::Write;

use comfy_table::{Table, presets};
use serde::{Serialize, Serializer};

use super::change::Change;
use super::tree::Package;
use super::verdict::{Finding, Severity};
use super::{Diagnosis, Trial, words};

/// Lines of prose are broken here; a line of a manifest never is.
const WIDTH: usize = 100;

#[derive(Serialize)]
struct Paper<'a> {
    manifest: &'a std::path::Path,
    targets: Vec<&'a str>,
    healthy: bool,
    crates: Vec<CrateOnPaper<'a>>,
    findings: Vec<FindingOnPaper<'a>>,
    changes: &'a [Change],
    trial: TrialOnPaper<'a>,
}

#[derive(Serialize)]
struct CrateOnPaper<'a> {
    target: &'a str,
    #[serde(flatten)]
    package: &'a Package,
}

#[derive(Serialize)]
struct FindingOnPaper<'a> {
    code: &'static str,
    severity: Severity,
    targets: &'a [String],
    message: String,
    cause: String,
    hints: Vec<String>,
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum TrialOnPaper<'a> {
    Nothing,
    Green,
    Left { codes: Vec<&'static str> },
    Refused { reason: &'a str },
}

impl Serialize for Diagnosis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let crates = self.resolved.iter().flat_map(|(target, packages)| {
            packages.iter().map(move |package| CrateOnPaper { target, package })
        });
        Paper {
            manifest: &self.manifest,
            targets: self.resolved.iter().map(|(target, _)| target.as_str()).collect(),
            healthy: self.is_healthy(),
            crates: crates.collect(),
            findings: on_paper(self),
            changes: &self.remedy.changes,
            trial: match &self.trial {
                Trial::Nothing => TrialOnPaper::Nothing,
                Trial::Green => TrialOnPaper::Green,
                Trial::Left(left) => TrialOnPaper::Left { codes: codes(left) },
                Trial::Refused(reason) => TrialOnPaper::Refused { reason },
            },
        }
        .serialize(serializer)
    }
}

fn on_paper(diagnosis: &Diagnosis) -> Vec<FindingOnPaper<'_>> {
    let remedy = &diagnosis.remedy;
    let pairs = diagnosis.findings.iter().zip(&remedy.advice);
    let told = pairs.map(|(Finding { fault, targets }, advice)| {
        let mut hints = advice.clone();
        hints.extend(words::standing_hint(fault).map(str::to_owned));
        if fault.severity() == Severity::Error && !remedy.changes.is_empty() {
            hints.insert(0, "change the lines below".to_owned());
        } else if hints.is_empty() {
            hints.push(
                "see who decides it: `cargo tree --invert candle-core --edges normal,features`".to_owned(),
            );
        }
        let (message, cause) = (words::message(fault, targets), words::cause(fault));
        FindingOnPaper {
            code: words::code(fault),
            severity: fault.severity(),
            targets,
            message,
            cause,
            hints,
        }
    });
    told.collect()
}

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| words::code(&finding.fault)).collect()
}

/// The diagnosis as text, without colour.
pub(super) fn text(diagnosis: &Diagnosis) -> String {
    let mut pages = vec![format!("read `{}`", diagnosis.manifest.display())];
    pages.extend(tables(diagnosis));
    for finding in on_paper(diagnosis) {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        let mut lines = vec![wrapped(&format!("{severity}: {}", finding.message), 0)];
        if !finding.targets.iter().all(|target| finding.message.contains(target.as_str())) {
            lines.push(wrapped(&format!("target: {}", words::list(finding.targets)), 2));
        }
        lines.push(wrapped(&format!("cause: {}", finding.cause), 2));
        lines.extend(finding.hints.iter().map(|hint| wrapped(&format!("hint: {hint}"), 2)));
        pages.push(lines.join("\n"));
    }
    pages.extend(changes(&diagnosis.remedy.changes));
    pages.extend(trial(&diagnosis.trial));
    pages.push(summary(diagnosis));
    pages.join("\n\n") + "\n"
}

/// A paragraph with its lines indented, the second and later ones deeper. What stands in backticks is not
/// torn apart, so that it can be searched for.
fn wrapped(text: &str, indent: usize) -> String {
    let mut pieces: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match pieces.last_mut().filter(|piece| piece.matches('`').count() % 2 == 1) {
            Some(open) => open.extend([" ", word]),
            None => pieces.push(word.to_owned()),
        }
    }
    let mut page = " ".repeat(indent);
    let mut width = indent;
    for (at, piece) in pieces.iter().enumerate() {
        let length = piece.chars().count();
        if at > 0 && width + 1 + length > WIDTH {
            width = indent + 2;
            write!(page, "\n{:width$}", "").ok();
        } else if at > 0 {
            width += 1;
            page.push(' ');
        }
        width += length;
        page.push_str(piece);
    }
    page
}

/// The resolved crates, one table for all targets that agree.
fn tables(diagnosis: &Diagnosis) -> Vec<String> {
    let mut groups: Vec<(Vec<&str>, &[Package])> = Vec::new();
    for (target, packages) in &diagnosis.resolved {
        match groups.iter_mut().find(|(_, known)| *known == packages.as_slice()) {
            Some((targets, _)) => targets.push(target),
            None => groups.push((vec![target], packages)),
        }
    }
    let pages = groups.into_iter().map(|(targets, packages)| {
        let mut page = format!("resolved for {}", words::list(&targets));
        if packages.is_empty() {
            return page + "\n  no crate of Candle";
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["crate", "version", "source", "features"]);
        for package in packages {
            let features: Vec<&str> = package.features.iter().map(String::as_str).collect();
            let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
            table.add_row([&package.name, &package.version, &words::source(&package.source), &features]);
        }
        for line in table.lines() {
            write!(page, "\n {}", line.trim_end()).ok();
        }
        page
    });
    pages.collect()
}

fn changes(changes: &[Change]) -> Vec<String> {
    let mut pages = Vec::new();
    for file in changes.chunk_by(|a, b| a.file == b.file) {
        let mut page = format!("change in `{}`", file[0].file.display());
        for change in file {
            let old = change.old.iter().flat_map(|old| old.lines()).enumerate();
            for (at, line) in old {
                write!(page, "\n  {:>4} - {line}", change.line + at).ok();
            }
            for line in change.new.iter().flat_map(|new| new.lines()) {
                write!(page, "\n       + {line}").ok();
            }
            if change.old.is_none() {
                let at = change.line;
                write!(page, "    (new, after line {at})").ok();
            }
        }
        pages.push(page);
    }
    pages
}

fn trial(trial: &Trial) -> Option<String> {
    match trial {
        Trial::Nothing => None,
        Trial::Green => Some("tried on a copy of the project: no error is left".to_owned()),
        Trial::Left(left) => {
            Some(format!("tried on a copy of the project, left: {}", words::list(&codes(left))))
        }
        Trial::Refused(reason) => Some(format!("tried on a copy of the project, refused: {reason}")),
    }
}

fn summary(diagnosis: &Diagnosis) -> String {
    if diagnosis.resolved.iter().all(|(_, packages)| packages.is_empty()) {
        return "nothing to diagnose: this project does not depend on Candle\n  \
                hint: development and build dependencies are not read"
            .to_owned();
    }
    let errors = diagnosis.findings.iter().filter(|finding| finding.is_error()).count();
    let notes = diagnosis.findings.len() - errors;
    let counted =
        |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    if errors == 0 && notes == 0 {
        return "healthy: no finding".to_owned();
    }
    let verdict = if errors == 0 { "healthy" } else { "not healthy" };
    format!("{verdict}: {}, {}", counted(errors, "error"), counted(notes, "note"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_broken_between_words_and_never_inside_backticks() {
        let literal = format!("`{}`", "a b ".repeat(30).trim());
        let told = wrapped(&format!("hint: {} {literal} end", "word ".repeat(18).trim()), 2);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 3, "{told}");
        assert!(lines[1].starts_with("    `a b") && lines[1].ends_with("a b`"), "{told}");
        assert_eq!(lines[2], "    end");
    }

    #[test]
    fn a_change_is_shown_with_the_line_it_replaces() {
        let change = |line, old: Option<&str>, new: Option<&str>| Change {
            file: "Cargo.toml".into(),
            line,
            old: old.map(str::to_owned),
            new: new.map(str::to_owned),
        };
        let told = changes(&[
            change(7, Some("a"), Some("b")),
            change(9, None, Some("c")),
            change(12, Some("d"), None),
        ]);
        assert_eq!(
            told,
            ["change in `Cargo.toml`\n     7 - a\n       + b\n       + c    (new, after line 9)\n    12 - d"]
        );
    }
}
