//! Text of a growing token sequence, piece by piece.

/// Maximum number of tokens that are decoded again while their text is incomplete. A character has at most 4 bytes, so a
/// longer run without a complete character is invalid text.
const MAX_PENDING: usize = 16;

/// Tokens of the prompt that are kept as context of the first generated token, at most.
const PROMPT_CONTEXT: usize = 8;
/// Tokens before which a character may have begun.
const MAX_SPLIT: usize = 3;

/// Turns tokens into text as they arrive.
///
/// A token is decoded after the tokens of the previous piece, and the difference is emitted. So spaces are those of the
/// whole text, also if the decoder removes the space before the first word, as SentencePiece does. Incomplete characters,
/// which decode to a trailing U+FFFD, are withheld.
#[derive(Clone, Debug)]
pub(crate) struct Detokenizer<D> {
    decode: D,
    /// The tokens of the previous piece, then those whose text is not complete.
    window: Vec<u32>,
    /// Number of tokens of the previous piece in `window`.
    context: usize,
    /// Text of the context.
    context_text: String,
    /// Text after the context that has been emitted.
    emitted: String,
}

impl<D: Fn(&[u32]) -> String> Detokenizer<D> {
    /// A detokenizer of output that continues `prompt`. Without a prompt, the output begins a text.
    pub(crate) fn new(decode: D, prompt: &[u32]) -> Self {
        let context = &prompt[prompt.len().saturating_sub(PROMPT_CONTEXT)..];
        if context.is_empty() {
            return Self::after(decode, &[]);
        }
        // A context that begins inside of a character may have no text at all: where bytes are tokens, a run of them that is
        // not UTF-8 is decoded to nothing else.
        let begins = |at: &usize| !decode(&context[*at..]).starts_with(char::REPLACEMENT_CHARACTER);
        let start = (0..context.len().min(MAX_SPLIT + 1)).find(begins).unwrap_or(0);
        Self::after(decode, &context[start..])
    }

    /// A detokenizer with this context.
    fn after(decode: D, context: &[u32]) -> Self {
        let context_text = if context.is_empty() { String::new() } else { decode(context) };
        Self {
            decode,
            context: context.len(),
            window: context.to_vec(),
            context_text,
            emitted: String::new(),
        }
    }

    /// Adds a token. Returns the text that is complete now, often that of this token.
    pub(crate) fn push(&mut self, token: u32) -> String {
        self.window.push(token);
        let text = self.pending_text();
        let stable = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        let mut piece = self.after_emitted(stable);
        if stable.len() == text.len() && !text.is_empty() {
            self.start_window(self.context);
        } else if self.window.len() - self.context < MAX_PENDING {
            self.emitted += &piece;
        } else {
            let recent = (self.decode)(&self.window[self.context..]);
            let is_invalid = recent.trim_end_matches(char::REPLACEMENT_CHARACTER).is_empty();
            if is_invalid {
                piece = self.after_emitted(&text);
            }
            self.start_window(self.context);
            if !is_invalid {
                // Every token ends inside of a character. The last one stays withheld.
                let stable = self.context_text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
                self.context_text.truncate(stable);
            }
        }
        piece
    }

    /// Returns the withheld text, at the end of the generation.
    pub(crate) fn flush(&mut self) -> String {
        if self.window.is_empty() {
            return String::new();
        }
        let piece = self.after_emitted(&self.pending_text());
        self.start_window(0);
        piece
    }

    /// Text of the tokens after the context.
    fn pending_text(&self) -> String {
        let text = (self.decode)(&self.window);
        match text.strip_prefix(&self.context_text) {
            Some(pending) => pending.to_owned(),
            // The new tokens change the text of the context: invalid bytes in a run of byte tokens, or a context that
            // ends inside of a character.
            None => (self.decode)(&self.window[self.context..]),
        }
    }

    /// The part of `text` that has not been emitted.
    fn after_emitted(&self, text: &str) -> String {
        match text.strip_prefix(&self.emitted) {
            Some(rest) => rest.to_owned(),
            None => text.chars().skip(self.emitted.chars().count()).collect(),
        }
    }

    /// Makes the tokens of the window from `start` the new context.
    fn start_window(&mut self, start: usize) {
        self.window.drain(..start);
        self.context = self.window.len();
        self.context_text = (self.decode)(&self.window);
        self.emitted.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// All pieces of the tokens.
    fn stream(decode: impl Fn(&[u32]) -> String, prompt: &[u32], tokens: &[u32]) -> String {
        let mut detokenizer = Detokenizer::new(decode, prompt);
        let text: String = tokens.iter().map(|&token| detokenizer.push(token)).collect();
        text + &detokenizer.flush()
    }

    /// A byte-level vocabulary: each token is one to three bytes.
    fn byte_level(tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| token.to_be_bytes().into_iter().skip_while(|&byte| byte == 0))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn byte_tokens(bytes: &[u8], lengths: &[usize]) -> Vec<u32> {
        let (mut tokens, mut rest, mut lengths) = (Vec::new(), bytes, lengths.iter().cycle());
        while !rest.is_empty() {
            let (token, behind) = rest.split_at((*lengths.next().unwrap()).min(rest.len()));
            tokens.push(token.iter().fold(0, |token, &byte| token << 8 | u32::from(byte)));
            rest = behind;
        }
        tokens
    }

    const WORDS: [&str; 7] = ["▁the", "▁a", "s", "▁", "é", "▁▁", ""];

    /// SentencePiece with byte fallback: token 256 + i is a word, others are bytes. The first space is removed. A run of
    /// bytes that is not UTF-8 is one U+FFFD per byte.
    fn sentence_piece(tokens: &[u32]) -> String {
        let mut text = String::new();
        let is_byte = |token: &u32| *token < 256;
        for run in tokens.chunk_by(|a, b| is_byte(a) == is_byte(b)) {
            if is_byte(&run[0]) {
                let bytes: Vec<u8> = run.iter().map(|&token| token as u8).collect();
                text += &String::from_utf8(bytes).unwrap_or_else(|_| "\u{FFFD}".repeat(run.len()));
            } else {
                text.extend(run.iter().map(|&token| WORDS[token as usize - 256]));
            }
        }
        let text = text.replace('▁', " ");
        text.strip_prefix(' ').unwrap_or(&text).to_owned()
    }

    fn pieces(decode: fn(&[u32]) -> String, prompt: &[u32], tokens: &[u32]) -> Vec<String> {
        let mut detokenizer = Detokenizer::new(decode, prompt);
        tokens.iter().map(|&token| detokenizer.push(token)).collect()
    }

    #[test]
    fn an_incomplete_character_is_withheld() {
        let tokens = byte_tokens("a€b".as_bytes(), &[1]);
        assert_eq!(pieces(byte_level, &[], &tokens), ["a", "", "", "€", "b"]);
        assert_eq!(pieces(sentence_piece, &[], &tokens), ["a", "", "", "€", "b"]);
    }

    #[test]
    fn the_complete_part_of_a_token_is_not_withheld() {
        // `é` and the first byte of `è` in one token.
        assert_eq!(pieces(byte_level, &[], &[0x00C3_A9C3, 0xA8]), ["é", "è"]);
    }

    #[test]
    fn spaces_are_those_of_the_whole_text() {
        assert_eq!(pieces(sentence_piece, &[], &[256, 257, 258]), ["the", " a", "s"]);
        assert_eq!(pieces(sentence_piece, &[257], &[256, 258]), [" the", "s"]);
    }

    #[test]
    fn an_empty_token_keeps_the_context() {
        assert_eq!(pieces(sentence_piece, &[], &[256, 262, 262, 257]), ["the", "", "", " a"]);
    }

    #[test]
    fn the_end_flushes_an_incomplete_character() {
        let mut detokenizer = Detokenizer::new(byte_level, &[]);
        assert_eq!(detokenizer.push(0xE2), "");
        assert_eq!(detokenizer.flush(), "\u{FFFD}");
        assert_eq!(detokenizer.flush(), "");
    }

    #[test]
    fn invalid_bytes_after_byte_tokens_do_not_change_emitted_text() {
        let tokens = [0xE2, 0x82, 0xAC, 0xE2, 256];
        assert_eq!(pieces(sentence_piece, &[], &tokens), ["", "", "€", "", "\u{FFFD} the"]);
    }

    /// A tokenizer as GGUF files of Llama 2 have it: token 256 + i is a word, 263 a control token, others are bytes.
    fn llama2() -> tokenizers::Tokenizer {
        let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>"));
        let words = WORDS.map(|word| if word.is_empty() { "<none>".to_owned() } else { word.to_owned() });
        let tokens = bytes.chain(words).chain(["<s>".to_owned()]).zip(0..);
        let vocabulary: serde_json::Map<String, serde_json::Value> =
            tokens.map(|(token, id)| (token, serde_json::Value::from(id))).collect();
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 263, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false,
            }],
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" },
                { "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
            ] },
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true },
        });
        json.to_string().parse().expect("a tokenizer")
    }

    #[test]
    fn byte_fallback_and_the_first_space_are_those_of_the_tokenizer() {
        let tokenizer = llama2();
        let decode = |tokens: &[u32]| tokenizer.decode(tokens, true).expect("they are tokens");
        let mut detokenizer = Detokenizer::new(decode, &[263]);
        let pieces: Vec<String> =
            [256, 0xE2, 0x82, 0xAC, 257, 258].into_iter().map(|token| detokenizer.push(token)).collect();
        assert_eq!(pieces, ["the", "", "", "€", " a", "s"]);
        assert_eq!(stream(decode, &[263, 257], &[256, 261, 260]), " the  é", "the prompt has a word");
        assert_eq!(stream(decode, &[263], &[256, 0xE2, 257]), "the\u{FFFD} a");
    }

    #[test]
    fn a_context_begins_where_a_character_does() {
        let tokenizer = llama2();
        let decode = |tokens: &[u32]| tokenizer.decode(tokens, true).expect("they are tokens");
        for (character, text) in [("é", "éàü"), ("ກ", "ຂຄງ"), ("🙂", "🙃🙂🙃")] {
            // Whatever the number of tokens before them, and also after a word.
            for (count, first) in (1..9).flat_map(|count| [(count, Some(256)), (count, None)]) {
                let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
                let prompt: Vec<u32> = first.into_iter().chain(bytes(&character.repeat(count))).collect();
                assert_eq!(stream(decode, &prompt, &bytes(text)), text, "after {count} times {character}");
                assert_eq!(stream(byte_level, &bytes(&character.repeat(count)), &bytes(text)), text);
            }
        }
    }

    #[test]
    fn tokens_that_all_end_inside_of_characters_are_decoded() {
        let text = "🙂".repeat(60);
        let lengths: Vec<usize> = [1].into_iter().chain([4; 60]).collect();
        let tokens = byte_tokens(text.as_bytes(), &lengths);
        assert_eq!(pieces(byte_level, &[], &tokens)[59], "🙂");
        assert_eq!(stream(byte_level, &[], &tokens), text);
    }

    #[test]
    fn work_per_token_is_bounded() {
        let longest = Cell::new(0);
        let decode = |tokens: &[u32]| {
            longest.set(longest.get().max(tokens.len()));
            byte_level(tokens)
        };
        let text = stream(decode, &[], &[0x80; 1000]);
        assert_eq!(text, "\u{FFFD}".repeat(1000));
        assert!(longest.get() <= 2 * MAX_PENDING);
    }

    proptest! {
        #[test]
        fn byte_level_pieces_are_the_text(
            text in "[aé€🙂 ]{0,40}",
            lengths in proptest::collection::vec(1_usize..=3, 1..8),
        ) {
            let tokens = byte_tokens(text.as_bytes(), &lengths);
            prop_assert_eq!(stream(byte_level, &[], &tokens), text);
        }

        #[test]
        fn byte_level_pieces_of_invalid_text_are_its_lossy_text(
            runs in proptest::collection::vec((proptest::collection::vec(128_u8..=255, 0..8), "[a-z]{1,2}"), 0..8),
        ) {
            let bytes: Vec<u8> = runs.iter().flat_map(|(run, word)| [run, word.as_bytes()].concat()).collect();
            prop_assert_eq!(stream(byte_level, &[], &byte_tokens(&bytes, &[1])), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn sentence_piece_pieces_are_the_text(
            runs in proptest::collection::vec((proptest::collection::vec(256_u32..263, 0..6), "[é€🙂]{0,2}"), 0..10),
        ) {
            let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
            let tokens: Vec<u32> = runs.iter().flat_map(|(words, text)| [words.clone(), bytes(text)].concat()).collect();
            prop_assert_eq!(stream(sentence_piece, &[], &tokens), sentence_piece(&tokens));
            let (prompt, output) = tokens.split_at(tokens.len() / 2);
            let context = sentence_piece(&prompt[prompt.len().saturating_sub(PROMPT_CONTEXT)..]);
            let is_split = |text: &str| text.contains(char::REPLACEMENT_CHARACTER);
            let is_word = context.chars().any(|character| character != ' ');
            if is_word && !is_split(&context) && !is_split(&sentence_piece(prompt)) && !is_split(&sentence_piece(output)) {
                prop_assert_eq!(sentence_piece(prompt) + &stream(sentence_piece, prompt, output), sentence_piece(&tokens));
            }
        }
    }
}
