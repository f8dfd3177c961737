//! Line-based changes of a file, made from text edits.

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

/// A change of whole lines that a program can apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// The file to change.
    pub(crate) file: PathBuf,
    /// The first line of `old`, 1-based, before any change. Without `old`, the line after which `new` is
    /// inserted.
    pub(crate) line: usize,
    /// The lines to remove, without the final line break.
    pub(crate) old: Option<String>,
    /// The lines to insert, without the final line break.
    pub(crate) new: Option<String>,
}

/// Replaces a span of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextEdit {
    pub(crate) span: Range<usize>,
    pub(crate) text: String,
}

/// The line starts of a text.
pub(crate) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    /// The text must end with a line break.
    pub(crate) fn of(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text, starts }
    }

    /// The 0-based line of an offset.
    fn at(&self, offset: usize) -> usize {
        self.starts.partition_point(|&start| start <= offset) - 1
    }

    /// The range extended to whole lines, including the final line break.
    pub(crate) fn around(&self, range: &Range<usize>) -> Range<usize> {
        let last = range.end.saturating_sub(1).max(range.start);
        let end = self.starts.get(self.at(last) + 1).copied().unwrap_or(self.text.len());
        self.starts[self.at(range.start)]..end
    }
}

/// Turns non-overlapping edits into changes of whole lines, in file order.
pub(crate) fn changes(file: &std::path::Path, text: &str, mut edits: Vec<TextEdit>) -> Vec<Change> {
    let lines = Lines::of(text);
    edits.sort_by_key(|edit| edit.span.start);
    let mut found: Vec<Change> = Vec::new();
    let mut hunks: Vec<(Range<usize>, Vec<TextEdit>)> = Vec::new();
    for edit in edits {
        let at = edit.span.start;
        if edit.span.is_empty() && (at == 0 || text[..at].ends_with('\n')) {
            let new = Some(edit.text.trim_end_matches('\n').to_owned());
            found.push(Change { file: file.to_owned(), line: lines.at(at), old: None, new });
            continue;
        }
        let around = lines.around(&edit.span);
        match hunks.last_mut() {
            Some((whole, parts)) if around.start < whole.end => {
                whole.end = whole.end.max(around.end);
                parts.push(edit);
            }
            Some(_) | None => hunks.push((around, vec![edit])),
        }
    }
    for (whole, parts) in hunks {
        let mut new = text[whole.clone()].to_owned();
        for edit in parts.into_iter().rev() {
            new.replace_range(edit.span.start - whole.start..edit.span.end - whole.start, &edit.text);
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

/// Applies changes to a text.
pub(crate) fn apply(text: &str, changes: &[Change]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for change in changes.iter().rev() {
        let new = change.new.iter().flat_map(|new| new.lines());
        let span = match &change.old {
            Some(old) => change.line - 1..change.line - 1 + old.lines().count(),
            None => change.line..change.line,
        };
        let span = span.start.min(lines.len())..span.end.min(lines.len());
        lines.splice(span, new);
    }
    lines.into_iter().flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn edit(text: &str, old: &str, new: &str) -> TextEdit {
        let start = text.find(old).expect("the old text is there");
        TextEdit { span: start..start + old.len(), text: new.to_owned() }
    }

    #[test]
    fn edits_of_one_line_become_one_change() {
        let text = "one\ntwo = { a, b }\nthree\n";
        let edits = vec![edit(text, "a", "A"), edit(text, "b", "B")];
        let made = changes(Path::new("f"), text, edits);
        assert_eq!(made.len(), 1);
        assert_eq!((made[0].line, made[0].new.as_deref()), (2, Some("two = { A, B }")));
        assert_eq!(apply(text, &made), "one\ntwo = { A, B }\nthree\n");
    }

    #[test]
    fn lines_are_added_removed_and_replaced_together() {
        let text = "one\ntwo\nthree\nfour\n";
        let edits = vec![
            edit(text, "two\n", ""),
            edit(text, "three", "3"),
            TextEdit { span: 14..14, text: "after three\n".to_owned() },
            TextEdit { span: 19..19, text: "last\n".to_owned() },
        ];
        let made = changes(Path::new("f"), text, edits);
        assert_eq!(made[0].new, None);
        assert_eq!(apply(text, &made), "one\n3\nafter three\nfour\nlast\n");
    }

    #[test]
    fn a_change_may_span_lines() {
        let text = "a = [\n  1,\n]\nb\n";
        let made = changes(Path::new("f"), text, vec![edit(text, "[\n  1,\n]", "[\n  1,\n  2,\n]")]);
        assert_eq!(made[0].old.as_deref(), Some("a = [\n  1,\n]"));
        assert_eq!(apply(text, &made), "a = [\n  1,\n  2,\n]\nb\n");
    }
}
