//! Turns of the user, from lines of text.

use std::io::{self, BufRead};

use crate::terminal::eprint_text;

/// Start and end of a message of several lines.
const FENCE: &str = "\"\"\"";

/// What the user entered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Message(String),
    /// A line that begins with `/`.
    Command(String),
}

/// Reads turns.
pub(super) struct Input<R> {
    lines: R,
    /// Whether a prompt is shown before each line.
    prompts: bool,
}

impl<R: BufRead> Input<R> {
    pub(super) fn new(lines: R, prompts: bool) -> Input<R> {
        Input { lines, prompts }
    }

    /// The next turn; `None` at the end of the input. Blank lines are skipped.
    pub(super) fn turn(&mut self) -> io::Result<Option<Turn>> {
        loop {
            let Some(line) = self.line("> ")? else { return Ok(None) };
            if let Some(rest) = line.trim_start().strip_prefix(FENCE) {
                return self.fenced(rest.to_owned()).map(|text| Some(Turn::Message(text)));
            }
            let text = self.continued(line)?;
            if text.trim().is_empty() {
                continue;
            }
            let is_command = text.starts_with('/');
            return Ok(Some(if is_command { Turn::Command(text) } else { Turn::Message(text) }));
        }
    }

    /// A line without its line break; `None` at the end of the input.
    fn line(&mut self, prompt: &str) -> io::Result<Option<String>> {
        if self.prompts {
            eprint_text(prompt);
        }
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line.ends_with('\n') {
            line.truncate(line.len() - 1);
        }
        if line.ends_with('\r') {
            line.truncate(line.len() - 1);
        }
        Ok(Some(line))
    }

    /// A line, and those that follow while lines end with a backslash.
    fn continued(&mut self, mut text: String) -> io::Result<String> {
        while text.ends_with('\\') {
            text.truncate(text.len() - 1);
            let Some(next) = self.line(". ")? else { break };
            text = format!("{text}\n{next}");
        }
        Ok(text)
    }

    /// The text up to the closing fence, or to the end of the input.
    fn fenced(&mut self, mut text: String) -> io::Result<String> {
        while !text.ends_with(FENCE) {
            let Some(line) = self.line(". ")? else { return Ok(text) };
            if !text.is_empty() {
                text.push('\n');
            }
            text += &line;
        }
        text.truncate(text.len() - FENCE.len());
        if text.ends_with('\n') {
            text.truncate(text.len() - 1);
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(text: &str) -> Vec<Turn> {
        let mut input = Input::new(text.as_bytes(), false);
        std::iter::from_fn(|| input.turn().expect("it is text")).collect()
    }

    #[test]
    fn a_turn_is_a_line_a_continued_line_or_a_block() {
        let message = |text: &str| Turn::Message(text.to_owned());
        let command = |text: &str| Turn::Command(text.to_owned());
        assert_eq!(turns(""), []);
        assert_eq!(turns("\n  \na\r\nb"), [message("a"), message("b")]);
        assert_eq!(turns("one\\\ntwo\\\nthree\nfour\\"), [message("one\ntwo\nthree"), message("four")]);
        assert_eq!(
            turns("\"\"\"\n/no command\n\n  x\n\"\"\"\nb"),
            [message("/no command\n\n  x"), message("b")]
        );
        assert_eq!(
            turns("\"\"\"a\nb\"\"\"\n\"\"\"c\"\"\"\n\"\"\"open"),
            [message("a\nb"), message("c"), message("open")]
        );
        assert_eq!(
            turns("/help\n /x\n/system a\\\nb"),
            [command("/help"), message(" /x"), command("/system a\nb")]
        );
    }
}
