//! Reads Markdown: prose without code, links, anchors and code blocks.

use std::collections::BTreeSet;

/// A fenced code block.
pub(crate) struct Fence<'a> {
    /// Line of its first fence, from 1.
    pub(crate) line: usize,
    /// The info string.
    pub(crate) info: &'a str,
    /// The line before the fence.
    pub(crate) before: &'a str,
    /// The first line of code.
    pub(crate) first: &'a str,
}

impl Fence<'_> {
    /// The language, without attributes such as `no_run`.
    pub(crate) fn language(&self) -> &str {
        self.info.split(',').next().unwrap_or_default()
    }

    /// Why nothing runs the block, by a comment before it.
    pub(crate) fn not_run(&self) -> Option<&str> {
        self.before.trim().strip_prefix("<!-- not run here: ")?.strip_suffix(" -->")
    }
}

/// The code blocks of a page.
pub(crate) fn fences(text: &str) -> Vec<Fence<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut fences, mut is_inside) = (Vec::new(), false);
    for (at, line) in lines.iter().enumerate() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        is_inside = !is_inside;
        if is_inside {
            let before = if at > 0 { lines[at - 1] } else { "" };
            let first = lines.get(at + 1).copied().unwrap_or_default();
            fences.push(Fence { line: at + 1, info: info.trim(), before, first });
        }
    }
    fences
}

/// The lines outside of code blocks and comments, numbered from 1, with inline code blanked.
pub(crate) fn prose(text: &str) -> Vec<(usize, String)> {
    let (mut lines, mut in_code, mut in_comment) = (Vec::new(), false, false);
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            continue;
        }
        let starts = !in_code && line.trim_start().starts_with("<!--");
        in_comment |= starts;
        if in_comment {
            in_comment = !line.contains("-->");
        } else if !in_code {
            let blanked =
                line.split('`').enumerate().map(|(piece, text)| if piece % 2 == 0 { text } else { "" });
            lines.push((at + 1, blanked.collect()));
        }
    }
    lines
}

/// The targets of links and images, with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line, prose) in prose(text) {
        for after in prose.split("](").skip(1) {
            if let Some((target, _)) = after.split_once(')') {
                links.push((line, target.to_owned()));
            }
        }
    }
    links
}

/// The anchors of the headings of a page, as GitHub and mdBook name them.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut in_code) = (BTreeSet::new(), false);
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(&label(heading.trim()));
        let repeated = (1..).map(|count| format!("{anchor}-{count}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// The text of a heading without the targets of its links.
fn label(heading: &str) -> String {
    let mut pieces = heading.split("](");
    let mut label = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        label.push_str(piece.split_once(')').map_or(piece, |(_, rest)| rest));
    }
    label
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.flat_map(char::to_lowercase).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[test]
fn anchors_are_those_of_github() {
    let page = "# How do I `serve` it, and [where](x.md#y)?\n```sh\n# a comment\n```\n## Again\n## Again\n";
    let expected = ["again", "again-1", "how-do-i-serve-it-and-where"];
    assert_eq!(anchors(page).iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn links_in_code_are_no_links() {
    let page = "see [a](b.md#c), `[d](e)`\n```text\n[f](g)\n```\n<!-- run first\n[h](i)\n-->\n![j](k.svg)\n";
    assert_eq!(links(page), [(1, "b.md#c".to_owned()), (8, "k.svg".to_owned())]);
}

#[test]
fn a_block_that_is_not_run_has_a_reason() {
    let page = "<!-- not run here: it needs a Mac -->\n```sh\nls\n```\n\n```rust,no_run\n```\n";
    let blocks = fences(page);
    assert_eq!(blocks.iter().map(Fence::not_run).collect::<Vec<_>>(), [Some("it needs a Mac"), None]);
    assert_eq!((blocks[0].line, blocks[0].first, blocks[1].language()), (2, "ls", "rust"));
}
