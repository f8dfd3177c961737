//! Splits a Markdown page into chunks: sections, and parts of long sections.

/// Maximum length of a chunk in bytes, about 200 tokens. Small embedding models read 256.
const MAX_BYTES: usize = 800;

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Title of the page and heading of the section: `Install > On a Mac`.
    pub heading: String,
    /// Number of its first line, from 1.
    pub line: u32,
    /// Its lines, without the heading.
    pub text: String,
}

impl Chunk {
    /// The text that models read. Part of a section says little without its heading.
    pub fn passage(&self) -> String {
        format!("{}\n{}", self.heading, self.text)
    }
}

/// The chunks of a page. HTML comments are left out.
pub fn chunks(page: &str) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut current = Chunk { heading: String::new(), line: 1, text: String::new() };
    let (mut title, mut in_code, mut in_comment) = (None, false, false);
    for (number, line) in (1..).zip(page.lines()) {
        in_comment |= !in_code && line.trim_start().starts_with("<!--");
        if in_comment {
            in_comment = !line.contains("-->");
        } else if let (false, Some(words)) = (in_code, heading(line)) {
            let heading = title.map_or(words.to_owned(), |title| format!("{title} > {words}"));
            title = title.or(Some(words));
            push(
                &mut chunks,
                std::mem::replace(&mut current, Chunk { heading, line: number, text: String::new() }),
            );
        } else {
            in_code ^= line.trim_start().starts_with("```");
            // A long section is split at a paragraph in its second half, or at any line.
            let at_paragraph = line.is_empty() && !in_code && current.text.len() > MAX_BYTES / 2;
            for part in parts(line) {
                if at_paragraph || current.text.len() + part.len() > MAX_BYTES {
                    let next = Chunk { heading: current.heading.clone(), line: number, text: String::new() };
                    push(&mut chunks, std::mem::replace(&mut current, next));
                }
                current.text.push_str(part);
                current.text.push('\n');
            }
        }
    }
    push(&mut chunks, current);
    chunks
}

/// The words of a heading.
fn heading(line: &str) -> Option<&str> {
    line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')).map(str::trim)
}

/// The line, or its parts if it is longer than a chunk. It is split at the end of a sentence, or between words.
fn parts(mut line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while line.len() >= MAX_BYTES {
        let window = &line[..line.floor_char_boundary(MAX_BYTES - 1)];
        let end = window.rfind(". ").or_else(|| window.rfind(' ')).map_or(window.len(), |at| at + 1);
        parts.push(&line[..end]);
        line = &line[end..];
    }
    parts.push(line);
    parts
}

fn push(chunks: &mut Vec<Chunk>, chunk: Chunk) {
    let text = chunk.text.trim();
    if !text.is_empty() {
        chunks.push(Chunk { text: text.to_owned(), ..chunk });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_has_the_title_of_its_page() {
        let page = "# Install\nOne.\n\n## On a Mac\n<!-- a comment\nof two lines -->\nTwo.\n```sh\n# no heading\n```\n";
        let found = chunks(page);
        let headings: Vec<&str> = found.iter().map(|chunk| chunk.heading.as_str()).collect();
        assert_eq!(headings, ["Install", "Install > On a Mac"]);
        assert_eq!(found[0].text, "One.");
        assert_eq!((found[0].line, found[1].line), (1, 4));
        assert_eq!(found[1].passage(), "Install > On a Mac\nTwo.\n```sh\n# no heading\n```");
    }

    #[test]
    fn long_sections_are_split_and_nothing_is_lost() {
        let paragraphs: Vec<String> = (0..40).map(|n| format!("word{n} {}", "x".repeat(90))).collect();
        let found = chunks(&format!("# Title\n{}\n", paragraphs.join("\n\n")));
        assert!(found.len() > 4, "{} chunks", found.len());
        assert!(found.iter().all(|chunk| chunk.text.len() <= MAX_BYTES && chunk.heading == "Title"));
        let text: String = found.iter().map(|chunk| chunk.text.clone() + "\n").collect();
        assert!(paragraphs.iter().all(|paragraph| text.contains(paragraph.as_str())));
    }

    #[test]
    fn long_lines_are_split_at_sentences() {
        let line = "Ä sentence of some words. ".repeat(80);
        let found = chunks(&line);
        assert!(found.len() >= 3 && found.iter().all(|chunk| chunk.text.ends_with('.')), "{found:?}");
        assert!(chunks(&"ä".repeat(2000)).iter().all(|chunk| chunk.text.len() <= MAX_BYTES));
    }

    #[test]
    fn a_text_without_headings_is_one_chunk() {
        let found = chunks("plain text\nof two lines");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "plain text\nof two lines");
        assert!(chunks("\n\n").is_empty());
    }
}
