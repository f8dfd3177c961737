//! The last lines of a worker's log.

use std::collections::VecDeque;

/// Number of lines that are kept.
const LINES: usize = 20;
/// Maximum characters of a line.
const MAX_CHARS: usize = 500;

/// The last lines of a log.
#[derive(Debug, Default)]
pub(super) struct LogTail {
    lines: VecDeque<String>,
}

impl LogTail {
    /// Adds a line. Long lines are cut.
    pub(super) fn push(&mut self, line: &str) {
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        let printable = line.chars().filter(|letter| !letter.is_control() || *letter == '\t');
        self.lines.push_back(printable.take(MAX_CHARS).collect());
    }

    /// The lines, oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_20_lines_are_kept() {
        let mut tail = LogTail::default();
        for number in 0..50 {
            tail.push(&format!("line {number}"));
        }
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[0].as_str(), lines[19].as_str()), (20, "line 30", "line 49"));
    }

    #[test]
    fn a_line_is_cut_and_has_no_control_characters() {
        let mut tail = LogTail::default();
        tail.push(&format!("\x1b[31m{}", "é".repeat(1000)));
        assert_eq!(tail.lines(), [format!("[31m{}", "é".repeat(496))]);
    }
}
