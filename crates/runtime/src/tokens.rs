//! Text to token ids: special tokens added, long texts cut where the card says, and the cut told.

use std::path::Path;

use sconce_core::card::ModelCard;
use tokenizers::{AddedToken, Encoding, PostProcessor, Tokenizer, TruncationDirection};

use crate::vocabulary::{self, VocabularyError};

/// A tokenizer with a model's limits.
pub struct Tokens {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) max_length: usize,
    /// Special tokens around a lone text.
    added: usize,
    /// Special tokens around and between two texts.
    pub(crate) added_to_pairs: usize,
    typed: bool,
}

/// A text as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokenized {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Token types.
    pub types: Vec<u32>,
    /// Leading tokens that belong to the prompt.
    pub skip: usize,
    /// Trailing tokens that none sees.
    pub unseen: usize,
    /// Tokens that the whole text has.
    pub whole: usize,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its id.
    pub id: u32,
    /// Its spelling.
    pub text: String,
    /// Whether it is not of the text.
    pub special: bool,
    /// Where it begins and ends in the text, in bytes.
    pub place: (usize, usize),
}

impl Tokenized {
    /// Whether the text was longer than the model takes.
    pub fn is_truncated(&self) -> bool {
        self.whole > self.ids.len()
    }
}

impl Tokens {
    /// The tokenizer in `folder`, with the limits of `card`.
    pub fn open(folder: &Path, card: &ModelCard) -> Result<Tokens, VocabularyError> {
        let mut tokenizer = vocabulary::open(folder)?;
        // Files carry limits and padding of their own; the card's limit stands, and nothing is padded.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(VocabularyError::Tokenizer)?;
        let none = tokenizer.encode("", true).map_err(VocabularyError::Tokenizer)?;
        let known = tokenizer.get_vocab_size(true);
        if known > card.sizes.value.vocabulary {
            return Err(VocabularyError::TooLarge { tokenizer: known, model: card.sizes.value.vocabulary });
        }
        let length = card.max_length.value;
        if length <= none.len() {
            return Err(VocabularyError::NoRoom { length, special: none.len() });
        }
        if let Some(sides) = &card.head.sides {
            mark(&mut tokenizer, [&sides.value.query, &sides.value.document])?;
        }
        let added_to_pairs =
            tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let typed = card.config["type_vocab_size"].as_u64().is_some_and(|types| types > 1);
        Ok(Tokens { tokenizer, max_length: length, added: none.len(), added_to_pairs, typed })
    }

    /// `prompt` and `text`, one after the other, as tokens.
    pub fn encode(&self, prompt: &str, text: &str) -> Result<Tokenized, VocabularyError> {
        self.encode_within(self.max_length, prompt, text)
    }

    /// The same, of at most `limit` tokens.
    pub(crate) fn encode_within(
        &self,
        limit: usize,
        prompt: &str,
        text: &str,
    ) -> Result<Tokenized, VocabularyError> {
        let joined;
        let input = if prompt.is_empty() {
            text
        } else {
            joined = format!("{prompt}{text}");
            &joined
        };
        let mut content = self.content(input)?;
        let whole = content.len() + self.added;
        let limit = limit.min(self.max_length);
        content.truncate(limit.saturating_sub(self.added), 0, TruncationDirection::Right);
        // What was cut off is kept by the library as pieces of their own; it would be processed below.
        content.take_overflowing();
        let skip = if prompt.is_empty() { 0 } else { self.prompt_length(prompt)? };
        self.finish(content, None, skip, whole)
    }

    /// The tokens of a text, without special ones.
    pub(crate) fn content(&self, text: &str) -> Result<Encoding, VocabularyError> {
        check_length(text)?;
        self.tokenizer.encode_fast(text, false).map_err(VocabularyError::Tokenizer)
    }

    /// One or two texts with the special tokens around them.
    pub(crate) fn finish(
        &self,
        text: Encoding,
        second: Option<Encoding>,
        skip: usize,
        whole: usize,
    ) -> Result<Tokenized, VocabularyError> {
        let encoding = self.tokenizer.post_process(text, second, true).map_err(VocabularyError::Tokenizer)?;
        let ids = encoding.get_ids().to_vec();
        if ids.len() > self.max_length {
            return Err(VocabularyError::Overflow { tokens: ids.len(), most: self.max_length });
        }
        let types = if self.typed { encoding.get_type_ids().to_vec() } else { vec![0; ids.len()] };
        Ok(Tokenized { ids, types, skip, unseen: 0, whole })
    }

    /// The tokens of a text with their spelling and their place, with special ones around them or not.
    pub fn pieces(&self, text: &str, special: bool) -> Result<Vec<Piece>, VocabularyError> {
        check_length(text)?;
        let encoding = self.tokenizer.encode(text, special).map_err(VocabularyError::Tokenizer)?;
        let of_text = encoding.get_special_tokens_mask().iter().zip(encoding.get_offsets());
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens()).zip(of_text);
        let pieces = tokens.map(|((&id, text), (&mask, &place))| Piece {
            id,
            text: text.clone(),
            special: mask == 1,
            place,
        });
        Ok(pieces.collect())
    }

    /// `text` in pieces of as many tokens as there is room for after `prompt`, cut between words where there are any,
    /// each with its tokens.
    pub(crate) fn chunks(&self, prompt: &str, text: &str) -> Result<Vec<(String, usize)>, VocabularyError> {
        let before = if prompt.is_empty() { 0 } else { self.pieces(prompt, false)?.len() };
        let room = self.max_length.saturating_sub(self.added + before).max(1);
        let places: Vec<(usize, usize)> =
            self.pieces(text, false)?.into_iter().map(|piece| piece.place).collect();
        Ok(cut_between(text, &places, room))
    }

    /// The text that token ids stand for.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, VocabularyError> {
        self.tokenizer.decode(ids, skip_special).map_err(VocabularyError::Tokenizer)
    }

    /// The id of a token by its own spelling.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// How many leading tokens sentence-transformers passes over for a prompt that is not pooled: those of the
    /// prompt alone, less a closing special token.
    fn prompt_length(&self, prompt: &str) -> Result<usize, VocabularyError> {
        check_length(prompt)?;
        let alone = self.tokenizer.encode_fast(prompt, true).map_err(VocabularyError::Tokenizer)?;
        let closes = alone.get_special_tokens_mask().last() == Some(&1);
        Ok(alone.len() - usize::from(closes))
    }
}

/// The most bytes of a text that are tokenized at once: tokens take many times the memory of their text.
const LONGEST_TEXT: usize = 16 << 20;

fn check_length(text: &str) -> Result<(), VocabularyError> {
    let bytes = text.len();
    if bytes > LONGEST_TEXT { Err(VocabularyError::TooLong { bytes, most: LONGEST_TEXT }) } else { Ok(()) }
}

/// Cuts `text`, whose tokens lie at these places, into pieces of at most `room` tokens. A cut is moved back to the
/// beginning of a word, if one begins in the last quarter of the piece.
fn cut_between(text: &str, places: &[(usize, usize)], room: usize) -> Vec<(String, usize)> {
    let mut pieces = Vec::new();
    let (mut first, mut start) = (0, 0);
    while places.len() - first > room {
        let end = first + room;
        let begins = |at: &usize| places[*at].0 > places[*at - 1].1;
        let cut = (first + room - room / 4..=end).rev().filter(|at| *at > first).find(begins).unwrap_or(end);
        let mut place = places[cut].0;
        while !text.is_char_boundary(place) {
            place -= 1;
        }
        pieces.push((text[start..place].to_owned(), cut - first));
        (first, start) = (cut, place);
    }
    pieces.push((text[start..].to_owned(), places.len() - first));
    pieces
}

/// Makes the words before queries and documents tokens of their own, where the vocabulary has them: they were in
/// training.
fn mark(tokenizer: &mut Tokenizer, markers: [&String; 2]) -> Result<(), VocabularyError> {
    let words = markers.into_iter().filter_map(|marker| marker.split_whitespace().next());
    let known = words.filter(|word| tokenizer.token_to_id(word).is_some());
    let tokens: Vec<AddedToken> = known.map(|word| AddedToken::from(word, true).normalized(false)).collect();
    tokenizer.add_special_tokens(tokens).map_err(VocabularyError::Tokenizer)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_words_and_nothing_is_lost() {
        let text = "one two threefour five";
        let places = [(0, 3), (4, 7), (8, 13), (13, 17), (18, 22)];
        let cut = |room| cut_between(text, &places, room);
        let piece = |text: &str, tokens| (text.to_owned(), tokens);
        assert_eq!(cut(5), [piece(text, 5)]);
        assert_eq!(cut(4), [piece("one two threefour ", 4), piece("five", 1)]);
        assert_eq!(cut(3), [piece("one two three", 3), piece("four five", 2)], "no word begins near enough");
        assert_eq!(cut(1).len(), 5);
        assert_eq!(cut(2).into_iter().map(|(text, _)| text).collect::<String>(), text);
        assert_eq!(cut_between("", &[], 4), [piece("", 0)]);
    }
}
