//! Lines to change in a file: made from splices of its text, and applied to it.

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

/// A change of whole lines, precise enough to be applied by a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// The file that holds the lines.
    pub(crate) file: PathBuf,
    /// The first line of `old`, counted from 1 in the file as it stands; without `old`, the line after which
    /// `new` is put.
    pub(crate) line: usize,
    /// The lines that go, without their last line break.
    pub(crate) old: Option<String>,
    /// The lines that come, without their last line break.
    pub(crate) new: Option<String>,
}

/// A piece of text put in the place of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Splice {
    pub(super) place: Range<usize>,
    pub(super) text: String,
}

/// Where the lines of a text begin.
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// The text must end with a line break.
    pub(super) fn of(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The line, counted from 0, that holds an offset.
    fn at(&self, offset: usize) -> usize {
        self.starts.partition_point(|&start| start <= offset) - 1
    }

    /// The whole lines that a range touches, with their last line break.
    pub(super) fn around(&self, range: &Range<usize>) -> Range<usize> {
        let last = range.end.saturating_sub(1).max(range.start);
        let end = self.starts.get(self.at(last) + 1).copied().unwrap_or(self.text.len());
        self.starts[self.at(range.start)]..end
    }
}

/// Turns splices, which may not overlap, into changes of whole lines in the order of the file.
pub(super) fn changes(file: &std::path::Path, text: &str, mut splices: Vec<Splice>) -> Vec<Change> {
    let lines = Lines::of(text);
    splices.sort_by_key(|splice| splice.place.start);
    let mut found: Vec<Change> = Vec::new();
    let mut hunks: Vec<(Range<usize>, Vec<Splice>)> = Vec::new();
    for splice in splices {
        let at = splice.place.start;
        if splice.place.is_empty() && (at == 0 || text[..at].ends_with('\n')) {
            let new = Some(splice.text.trim_end_matches('\n').to_owned());
            found.push(Change { file: file.to_owned(), line: lines.at(at), old: None, new });
            continue;
        }
        let around = lines.around(&splice.place);
        match hunks.last_mut() {
            Some((whole, parts)) if around.start < whole.end => {
                whole.end = whole.end.max(around.end);
                parts.push(splice);
            }
            Some(_) | None => hunks.push((around, vec![splice])),
        }
    }
    for (whole, parts) in hunks {
        let mut new = text[whole.clone()].to_owned();
        for splice in parts.into_iter().rev() {
            new.replace_range(splice.place.start - whole.start..splice.place.end - whole.start, &splice.text);
        }
        let trimmed = |text: &str| {
            text.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line).to_owned())
        };
        let (line, old) = (lines.at(whole.start) + 1, trimmed(&text[whole]));
        found.push(Change { file: file.to_owned(), line, old, new: trimmed(&new) });
    }
    found.sort_by_key(|change| (change.line, change.old.is_none()));
    found
}

/// The text with the changes made.
pub(super) fn apply(text: &str, changes: &[Change]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for change in changes.iter().rev() {
        let new = change.new.iter().flat_map(|new| new.lines());
        let place = match &change.old {
            Some(old) => change.line - 1..change.line - 1 + old.lines().count(),
            None => change.line..change.line,
        };
        let place = place.start.min(lines.len())..place.end.min(lines.len());
        lines.splice(place, new);
    }
    lines.into_iter().flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn splice(text: &str, old: &str, new: &str) -> Splice {
        let start = text.find(old).expect("the old text is there");
        Splice { place: start..start + old.len(), text: new.to_owned() }
    }

    #[test]
    fn splices_of_one_line_become_one_change() {
        let text = "one\ntwo = { a, b }\nthree\n";
        let splices = vec![splice(text, "a", "A"), splice(text, "b", "B")];
        let made = changes(Path::new("f"), text, splices);
        assert_eq!(made.len(), 1);
        assert_eq!((made[0].line, made[0].new.as_deref()), (2, Some("two = { A, B }")));
        assert_eq!(apply(text, &made), "one\ntwo = { A, B }\nthree\n");
    }

    #[test]
    fn lines_are_added_removed_and_replaced_together() {
        let text = "one\ntwo\nthree\nfour\n";
        let splices = vec![
            splice(text, "two\n", ""),
            splice(text, "three", "3"),
            Splice { place: 14..14, text: "after three\n".to_owned() },
            Splice { place: 19..19, text: "last\n".to_owned() },
        ];
        let made = changes(Path::new("f"), text, splices);
        assert_eq!(made[0].new, None);
        assert_eq!(apply(text, &made), "one\n3\nafter three\nfour\nlast\n");
    }

    #[test]
    fn a_change_may_span_lines() {
        let text = "a = [\n  1,\n]\nb\n";
        let made = changes(Path::new("f"), text, vec![splice(text, "[\n  1,\n]", "[\n  1,\n  2,\n]")]);
        assert_eq!(made[0].old.as_deref(), Some("a = [\n  1,\n]"));
        assert_eq!(apply(text, &made), "a = [\n  1,\n  2,\n]\nb\n");
    }
}
