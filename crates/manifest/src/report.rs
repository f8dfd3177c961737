//! Renders a diagnosis as text, and serializes it to JSON.

use std::fmt::Write;

use comfy_table::{Table, presets};
use serde::{Serialize, Serializer};

use crate::change::Change;
use crate::checks::{Finding, Severity};
use crate::diagnosis::{Diagnosis, Verification};
use crate::messages;
use crate::tree::Package;

/// Prose wraps at this column. Manifest lines never wrap.
const WIDTH: usize = 100;

#[derive(Serialize)]
struct Report<'a> {
    manifest: &'a std::path::Path,
    targets: Vec<&'a str>,
    healthy: bool,
    crates: Vec<CrateReport<'a>>,
    findings: Vec<FindingReport<'a>>,
    changes: &'a [Change],
    verification: VerificationReport<'a>,
}

#[derive(Serialize)]
struct CrateReport<'a> {
    target: &'a str,
    #[serde(flatten)]
    package: &'a Package,
}

#[derive(Serialize)]
struct FindingReport<'a> {
    code: &'static str,
    severity: Severity,
    targets: &'a [String],
    message: String,
    cause: String,
    hints: Vec<String>,
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum VerificationReport<'a> {
    Skipped,
    Passed,
    Failed { codes: Vec<&'static str> },
    Rejected { reason: &'a str },
}

impl Serialize for Diagnosis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let crates = self.resolved.iter().flat_map(|(target, packages)| {
            packages.iter().map(move |package| CrateReport { target, package })
        });
        Report {
            manifest: &self.manifest,
            targets: self.resolved.iter().map(|(target, _)| target.as_str()).collect(),
            healthy: self.is_healthy(),
            crates: crates.collect(),
            findings: finding_reports(self),
            changes: &self.fix.changes,
            verification: match &self.verification {
                Verification::Skipped => VerificationReport::Skipped,
                Verification::Passed => VerificationReport::Passed,
                Verification::Failed(errors) => VerificationReport::Failed { codes: codes(errors) },
                Verification::Rejected(reason) => VerificationReport::Rejected { reason },
            },
        }
        .serialize(serializer)
    }
}

fn finding_reports(diagnosis: &Diagnosis) -> Vec<FindingReport<'_>> {
    let fix = &diagnosis.fix;
    let pairs = diagnosis.findings.iter().zip(&fix.hints);
    let reports = pairs.map(|(Finding { problem, targets }, hints)| {
        let mut hints = hints.clone();
        hints.extend(messages::general_hint(problem).map(str::to_owned));
        if problem.severity() == Severity::Error && !fix.changes.is_empty() {
            hints.insert(0, "change the lines below".to_owned());
        } else if hints.is_empty() {
            hints.push(
                "see which dependency enables it: `cargo tree --invert candle-core --edges normal,features`"
                    .to_owned(),
            );
        }
        let (message, cause) = (messages::message(problem, targets), messages::cause(problem));
        FindingReport {
            code: messages::code(problem),
            severity: problem.severity(),
            targets,
            message,
            cause,
            hints,
        }
    });
    reports.collect()
}

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| messages::code(&finding.problem)).collect()
}

/// Renders the diagnosis as plain text.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut sections = vec![format!("read `{}`", diagnosis.manifest.display())];
    sections.extend(tables(diagnosis));
    for finding in finding_reports(diagnosis) {
        let severity = match finding.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        let mut lines = vec![wrapped(&format!("{severity}: {}", finding.message), 0)];
        if !finding.targets.iter().all(|target| finding.message.contains(target.as_str())) {
            lines.push(wrapped(&format!("target: {}", messages::list(finding.targets)), 2));
        }
        lines.push(wrapped(&format!("cause: {}", finding.cause), 2));
        lines.extend(finding.hints.iter().map(|hint| wrapped(&format!("hint: {hint}"), 2)));
        sections.push(lines.join("\n"));
    }
    sections.extend(changes(&diagnosis.fix.changes));
    sections.extend(verification(&diagnosis.verification));
    sections.push(summary(diagnosis));
    sections.join("\n\n") + "\n"
}

/// Wraps a paragraph with a hanging indent. Text in backticks stays on one line, so that it can be searched for.
fn wrapped(text: &str, indent: usize) -> String {
    let mut pieces: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match pieces.last_mut().filter(|piece| piece.matches('`').count() % 2 == 1) {
            Some(open) => open.extend([" ", word]),
            None => pieces.push(word.to_owned()),
        }
    }
    let mut wrapped = " ".repeat(indent);
    let mut width = indent;
    for (at, piece) in pieces.iter().enumerate() {
        let length = piece.chars().count();
        if at > 0 && width + 1 + length > WIDTH {
            width = indent + 2;
            write!(wrapped, "\n{:width$}", "").ok();
        } else if at > 0 {
            width += 1;
            wrapped.push(' ');
        }
        width += length;
        wrapped.push_str(piece);
    }
    wrapped
}

/// The resolved crates. Targets with equal crates share a table.
fn tables(diagnosis: &Diagnosis) -> Vec<String> {
    let mut groups: Vec<(Vec<&str>, &[Package])> = Vec::new();
    for (target, packages) in &diagnosis.resolved {
        match groups.iter_mut().find(|(_, known)| *known == packages.as_slice()) {
            Some((targets, _)) => targets.push(target),
            None => groups.push((vec![target], packages)),
        }
    }
    let sections = groups.into_iter().map(|(targets, packages)| {
        let mut section = format!("resolved for {}", messages::list(&targets));
        if packages.is_empty() {
            return section + "\n  no Candle crate";
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["crate", "version", "source", "features"]);
        for package in packages {
            let features: Vec<&str> = package.features.iter().map(String::as_str).collect();
            let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
            table.add_row([&package.name, &package.version, &messages::source(&package.source), &features]);
        }
        for line in table.lines() {
            write!(section, "\n {}", line.trim_end()).ok();
        }
        section
    });
    sections.collect()
}

fn changes(changes: &[Change]) -> Vec<String> {
    let mut sections = Vec::new();
    for file in changes.chunk_by(|a, b| a.file == b.file) {
        let mut section = format!("change in `{}`", file[0].file.display());
        for change in file {
            let old = change.old.iter().flat_map(|old| old.lines()).enumerate();
            for (at, line) in old {
                write!(section, "\n  {:>4} - {line}", change.line + at).ok();
            }
            for line in change.new.iter().flat_map(|new| new.lines()) {
                write!(section, "\n       + {line}").ok();
            }
            if change.old.is_none() {
                let at = change.line;
                write!(section, "    (new, after line {at})").ok();
            }
        }
        sections.push(section);
    }
    sections
}

fn verification(verification: &Verification) -> Option<String> {
    match verification {
        Verification::Skipped => None,
        Verification::Passed => Some("verified on a copy of the project: no errors remain".to_owned()),
        Verification::Failed(errors) => {
            let codes = messages::list(&codes(errors));
            Some(format!("verified on a copy of the project, errors remain: {codes}"))
        }
        Verification::Rejected(reason) => {
            Some(format!("verified on a copy of the project, cargo rejected the changes: {reason}"))
        }
    }
}

fn summary(diagnosis: &Diagnosis) -> String {
    if diagnosis.resolved.iter().all(|(_, packages)| packages.is_empty()) {
        return "nothing to diagnose: this project does not depend on Candle\n  \
                hint: development and build dependencies are ignored"
            .to_owned();
    }
    let errors = diagnosis.findings.iter().filter(|finding| finding.is_error()).count();
    let notes = diagnosis.findings.len() - errors;
    let counted =
        |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    if errors == 0 && notes == 0 {
        return "healthy: no findings".to_owned();
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
