//! Stop strings in a stream of text.

/// Finds stop strings in a stream of text pieces, and holds back text that may be the beginning of one.
///
/// The result does not depend on how the text is split into pieces: generation ends at the first byte that completes a stop
/// string. If several end there, the longest counts.
#[derive(Clone, Debug)]
pub(crate) struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text that is not emitted yet. It ends with the longest beginning of a stop string.
    held: String,
    is_stopped: bool,
}

/// Output of a [`StopMatcher`] for a piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StopOutput {
    /// Text that is not part of a stop string.
    pub(crate) text: String,
    /// Index of the stop string that ended the generation with this piece.
    pub(crate) stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher of `stop`. Empty strings are ignored.
    pub(crate) fn new(stop: &[String]) -> Self {
        Self {
            patterns: stop.iter().map(|stop| Pattern::new(stop)).collect(),
            held: String::new(),
            is_stopped: false,
        }
    }

    /// Adds a piece. Returns the text that can no longer be part of a stop string. After a match, text is dropped.
    pub(crate) fn push(&mut self, piece: &str) -> StopOutput {
        if self.is_stopped {
            return StopOutput::default();
        }
        for (at, byte) in piece.bytes().enumerate() {
            self.patterns.iter_mut().for_each(|pattern| pattern.advance(byte));
            let matches = self.patterns.iter().enumerate().filter(|(_, pattern)| pattern.is_complete());
            if let Some((stop, pattern)) =
                matches.max_by_key(|(index, pattern)| (pattern.state, usize::MAX - index))
            {
                // A match ends on a character boundary, as does the piece up to it.
                self.held.push_str(&piece[..=at]);
                self.held.truncate(self.held.len() - pattern.state);
                self.is_stopped = true;
                return StopOutput { text: std::mem::take(&mut self.held), stop: Some(stop) };
            }
        }
        self.held.push_str(piece);
        let held = self.patterns.iter().map(|pattern| pattern.state).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - held);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Adds a piece in which no stop string may begin, such as one before `min_tokens`. Returns all text.
    pub(crate) fn skip(&mut self, piece: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.flush() + piece
    }

    /// Returns the text that is held back, at the end of the generation.
    pub(crate) fn flush(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.state = 0);
        std::mem::take(&mut self.held)
    }
}

/// A stop string with the failure function of Knuth, Morris and Pratt: constant amortized time per byte.
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// For each prefix of length `i + 1`, the length of its longest border.
    borders: Vec<usize>,
    /// Length of the longest prefix that the text ends with.
    state: usize,
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[at] == bytes[border]);
            borders[at] = border;
        }
        Self { bytes, borders, state: 0 }
    }

    fn advance(&mut self, byte: u8) {
        while self.state > 0 && self.bytes.get(self.state) != Some(&byte) {
            self.state = self.borders[self.state - 1];
        }
        self.state += usize::from(self.bytes.get(self.state) == Some(&byte));
    }

    fn is_complete(&self) -> bool {
        self.state > 0 && self.state == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stop: &[&str]) -> StopMatcher {
        StopMatcher::new(&stop.iter().map(|&stop| stop.to_owned()).collect::<Vec<_>>())
    }

    /// All text and the stop string of a stream.
    fn run(stop: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = matcher(stop);
        let (mut text, mut stopped) = (String::new(), None);
        for piece in pieces {
            let output = matcher.push(piece);
            text += &output.text;
            stopped = stopped.or(output.stop);
        }
        (text + &matcher.flush(), stopped)
    }

    /// The expected result, by search in the whole text.
    fn reference(stop: &[&str], text: &str) -> (String, Option<usize>) {
        for end in 0..=text.len() {
            let ends = |stop: &&&str| !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes());
            if let Some(longest) = stop.iter().filter(ends).max_by_key(|stop| stop.len()) {
                let first = stop.iter().position(|stop| stop == longest);
                return (text[..end - longest.len()].to_owned(), first);
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn text_without_stop_strings_passes_at_once() {
        assert_eq!(matcher(&[]).push("abc"), StopOutput { text: "abc".to_owned(), stop: None });
        assert_eq!(matcher(&[""]).push("abc"), StopOutput { text: "abc".to_owned(), stop: None });
    }

    #[test]
    fn a_possible_beginning_is_held_back() {
        let mut matcher = matcher(&["<end>"]);
        assert_eq!(matcher.push("a <en").text, "a ");
        assert_eq!(matcher.push("t").text, "<ent");
        assert_eq!(matcher.push(" <").text, " ");
        assert_eq!(matcher.push("end> more"), StopOutput { text: String::new(), stop: Some(0) });
        assert_eq!(matcher.push("more"), StopOutput::default());
        assert_eq!((matcher.skip("more"), matcher.flush()), (String::new(), String::new()));
    }

    #[test]
    fn the_longest_of_stop_strings_that_end_together_counts() {
        assert_eq!(run(&["bc", "abc"], &["xab", "c"]), ("x".to_owned(), Some(1)));
        assert_eq!(run(&["abc", "b"], &["xab", "c"]), ("xa".to_owned(), Some(1)));
    }

    #[test]
    fn the_end_flushes_held_text() {
        assert_eq!(run(&["\n\n"], &["a\n"]), ("a\n".to_owned(), None));
    }

    #[test]
    fn characters_of_several_bytes_are_not_split() {
        // `é` and `è` share their first byte.
        assert_eq!(run(&["é!"], &["è", "é", "é", "!"]), ("èé".to_owned(), Some(0)));
    }

    #[test]
    fn skipped_text_begins_no_stop_string() {
        let mut matcher = matcher(&["ab"]);
        assert_eq!(matcher.push("xa").text, "x");
        assert_eq!(matcher.skip("ba"), "aba");
        assert_eq!(matcher.push("b").text, "b");
    }

    fn text() -> impl Strategy<Value = String> {
        proptest::collection::vec(prop_oneof![Just('a'), Just('b'), Just('é'), Just('è'), Just('€')], 0..40)
            .prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn results_do_not_depend_on_pieces(
            text in text(),
            stop in proptest::collection::vec("[abéè]{0,4}", 0..4),
            lengths in proptest::collection::vec(0_usize..5, 0..40),
        ) {
            let characters: Vec<char> = text.chars().collect();
            let (mut pieces, mut rest) = (Vec::new(), &characters[..]);
            for length in lengths {
                let (piece, behind) = rest.split_at(length.min(rest.len()));
                pieces.push(String::from_iter(piece));
                rest = behind;
            }
            pieces.push(String::from_iter(rest));
            let stop: Vec<&str> = stop.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stop, &pieces), reference(&stop, &text));
        }

        #[test]
        fn held_text_is_the_beginning_of_a_stop_string(text in text(), stop in "[abéè]{1,4}") {
            let mut matcher = matcher(&[&stop]);
            for character in text.chars() {
                if matcher.push(&character.to_string()).stop.is_some() {
                    break;
                }
                prop_assert!(stop.starts_with(&matcher.held) && matcher.held.len() < stop.len());
            }
        }
    }
}
